//! What goes wrong between a server and git.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::thread;

/// A server that takes every connection and never answers.
pub struct Silence {
    listener: TcpListener,
}

impl Silence {
    /// Listens.
    pub fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has ports");
        let silent = listener.try_clone().expect("a socket can be cloned");
        thread::spawn(move || {
            let mut taken = Vec::new();
            while let Ok((stream, _)) = silent.accept() {
                taken.push(stream);
            }
        });
        Self { listener }
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.listener.local_addr().expect("it is bound").port()
    }
}

/// A line to a server that is cut when so many bytes went one way.
pub struct CutLine {
    port: u16,
}

impl CutLine {
    /// A line to `port` of 127.0.0.1, for this many bytes of the client's and of the server's.
    pub fn start(to: u16, of_client: usize, of_server: usize) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has ports");
        let port = listener.local_addr().expect("it is bound").port();
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)) else {
                    return;
                };
                let twin = |stream: &TcpStream| stream.try_clone().expect("a socket can be cloned");
                let (client_2, server_2) = (twin(&client), twin(&server));
                thread::spawn(move || pass_on(client, server, of_client));
                thread::spawn(move || pass_on(server_2, client_2, of_server));
            }
        });
        Self { port }
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// Passes on up to `limit` bytes; then both have lost each other.
fn pass_on(mut from: TcpStream, mut to: TcpStream, limit: usize) {
    let mut left = limit;
    let mut buffer = [0; 4096];
    loop {
        let wanted = left.min(buffer.len());
        match from.read(&mut buffer[..wanted]) {
            Ok(n @ 1..) if to.write_all(&buffer[..n]).is_ok() => left -= n,
            // Whoever has said all still listens.
            Ok(0) if left > 0 => {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            _ => break,
        }
    }
    for stream in [&from, &to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}
