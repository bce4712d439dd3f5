use std::time::Instant;
use stillframe_benches::*;
fn main() {
    let mut a = std::env::args().skip(1);
    let mode = a.next().unwrap();
    let dir = std::path::PathBuf::from(a.next().unwrap());
    let n: usize = a.next().map_or(10, |n| n.parse().unwrap());
    match mode.as_str() {
        "gen" => {
            generate(&dir.join("tree"), TreeOptions::new(n)).unwrap();
        }
        "unchanged" => {
            let s = Stillframe::open(&dir.join("tree"), &dir.join("state"));
            for _ in 0..n {
                let t = Instant::now();
                let s = s.snapshot();
                println!(
                    "{:?} hashed {} internal {}",
                    t.elapsed(),
                    s.metadata.files_hashed,
                    s.metadata.duration_ms
                );
            }
        }
        "first" => {
            for i in 0..n {
                let t = Instant::now();
                let s = Stillframe::open(&dir.join("tree"), &dir.join(format!("state-{i}")));
                let s = s.snapshot();
                println!(
                    "{:?} hashed {} internal {}",
                    t.elapsed(),
                    s.metadata.files_hashed,
                    s.metadata.duration_ms
                );
                std::fs::remove_dir_all(dir.join(format!("state-{i}"))).unwrap();
            }
        }
        "watched" => {
            use stillframe_backends::*;
            let state = StateDir::open(dir.join("state-w")).unwrap();
            let w = Workspace::open(dir.join("tree"), &state).unwrap();
            let b = detect(&w, Strategy::Auto).unwrap().backend;
            let w = w.lock(std::time::Duration::from_secs(60)).unwrap();
            let watch = std::env::var("NOWATCH").is_err();
            let files: Vec<_> = String::from_utf8(
                std::process::Command::new("git")
                    .args(["ls-files"])
                    .current_dir(dir.join("tree"))
                    .output()
                    .unwrap()
                    .stdout,
            )
            .unwrap()
            .lines()
            .map(|l| dir.join("tree").join(l))
            .collect();
            for i in 0..n {
                let changes = if i % 2 == 1 { 150 } else { 0 };
                for c in 0..changes {
                    let f = &files[(i * 7919 + c * 104729) % files.len()];
                    use std::io::Write;
                    if let Ok(mut f) = std::fs::OpenOptions::new().append(true).open(f) {
                        f.write_all(b"x\n").unwrap();
                    }
                    if c < 20 {
                        let _ = std::fs::write(f.with_extension(format!("new{i}")), "new");
                    }
                }
                let t = Instant::now();
                let s = b
                    .snapshot(
                        &w,
                        &SnapshotOptions::new(Label::MANUAL, jiff::Timestamp::UNIX_EPOCH)
                            .watch(watch),
                    )
                    .unwrap();
                println!(
                    "{changes} changes {:?} internal {} hashed {} {:?}",
                    t.elapsed(),
                    s.metadata.duration_ms,
                    s.metadata.files_hashed,
                    s.metadata.search
                );
            }
        }
        _ => panic!(),
    }
}
