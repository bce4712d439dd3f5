//! Reading the JSON documents that the program prints.

use serde_json::Value;

/// The JSON document of a snapshot.
#[derive(Clone, Debug)]
pub struct Snap {
    /// The document.
    pub json: Value,
}

impl Snap {
    /// The snapshot of a document.
    #[track_caller]
    pub fn of(json: &Value) -> Self {
        assert!(json["id"].is_string(), "a snapshot has an id: {json}");
        Self { json: json.clone() }
    }

    /// Its id.
    pub fn id(&self) -> &str {
        self.json["id"].as_str().expect("checked when it was made")
    }

    /// The id of its tree.
    #[track_caller]
    pub fn tree(&self) -> &str {
        self.json["tree"]
            .as_str()
            .unwrap_or_else(|| panic!("a snapshot of the git backend has a tree: {}", self.json))
    }

    /// What it is called in its store.
    #[track_caller]
    pub fn reference(&self) -> &str {
        self.json["ref"]
            .as_str()
            .unwrap_or_else(|| panic!("a snapshot has a ref: {}", self.json))
    }

    /// A number of its metadata.
    #[track_caller]
    pub fn count(&self, name: &str) -> u64 {
        self.json["metadata"][name]
            .as_u64()
            .unwrap_or_else(|| panic!("metadata has the number {name}: {}", self.json))
    }

    /// What was left out: the paths with their reasons.
    #[track_caller]
    pub fn omissions(&self) -> Vec<(String, String)> {
        let list = self.json["omissions"]
            .as_array()
            .unwrap_or_else(|| panic!("a snapshot has omissions: {}", self.json));
        list.iter()
            .map(|o| {
                let reason = o["reason"].as_str().expect("an omission has a reason");
                (name(&o["path"]), reason.to_owned())
            })
            .collect()
    }

    /// Why `path` itself was left out, if it was.
    #[track_caller]
    pub fn omitted(&self, path: &str) -> Option<String> {
        let mut all = self.omissions().into_iter();
        all.find(|(p, _)| p == path).map(|(_, reason)| reason)
    }

    /// Why `path` was left out, or a directory above it, if one was.
    #[track_caller]
    pub fn covered(&self, path: &str) -> Option<String> {
        let inside = |above: &str| {
            path == above || path.strip_prefix(above).is_some_and(|r| r.starts_with('/'))
        };
        let mut all = self.omissions().into_iter();
        all.find(|(p, _)| inside(p)).map(|(_, reason)| reason)
    }
}

/// The bytes of a path: a string, or `{"base64": "…"}` where they are not UTF-8.
#[track_caller]
pub fn path_bytes(value: &Value) -> Vec<u8> {
    if let Some(text) = value.as_str() {
        return text.as_bytes().to_vec();
    }
    let base64 = value["base64"]
        .as_str()
        .unwrap_or_else(|| panic!("{value} is no path"));
    let bytes = data_encoding::BASE64
        .decode(base64.as_bytes())
        .unwrap_or_else(|e| panic!("{value} is no path: {e}"));
    assert!(
        std::str::from_utf8(&bytes).is_err(),
        "a path that is UTF-8 is a string: {value}"
    );
    bytes
}

/// A path for people: what is not UTF-8 in it is escaped.
#[track_caller]
pub fn name(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None => path_bytes(value).escape_ascii().to_string(),
    }
}

/// The paths of a list, for people.
#[track_caller]
pub fn names(list: &Value) -> Vec<String> {
    let list = list
        .as_array()
        .unwrap_or_else(|| panic!("{list} is no list of paths"));
    list.iter().map(name).collect()
}

/// The paths of a list of objects that each have a `path`, such as `skipped`.
#[track_caller]
pub fn names_in(list: &Value) -> Vec<String> {
    let list = list
        .as_array()
        .unwrap_or_else(|| panic!("{list} is no list"));
    list.iter().map(|item| name(&item["path"])).collect()
}

/// The reason that a list such as `skipped` gives for `path`.
#[track_caller]
pub fn reason_of(list: &Value, path: &str) -> Option<String> {
    let list = list
        .as_array()
        .unwrap_or_else(|| panic!("{list} is no list"));
    list.iter()
        .find(|item| name(&item["path"]) == path)
        .map(|item| {
            item["reason"]
                .as_str()
                .unwrap_or_else(|| panic!("{item} has a reason"))
                .to_owned()
        })
}

/// The names of the keys of an object, sorted.
#[track_caller]
pub fn keys(object: &Value) -> Vec<String> {
    let object = object
        .as_object()
        .unwrap_or_else(|| panic!("{object} is no object"));
    let mut keys: Vec<String> = object.keys().cloned().collect();
    keys.sort();
    keys
}

/// The bytes of a patch: a string, or `{"base64": "…"}` where they are not UTF-8.
#[track_caller]
pub fn patch_bytes(value: &Value) -> Vec<u8> {
    path_bytes(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_are_strings_or_base64() {
        assert_eq!(path_bytes(&json!("a/b")), b"a/b");
        assert_eq!(path_bytes(&json!({"base64": "/w=="})), b"\xff");
        assert_eq!(names(&json!(["a", {"base64": "Yf8="}])), ["a", "a\\xff"]);
    }

    #[test]
    fn an_omission_covers_what_lies_below_and_nothing_beside() {
        let snap = Snap::of(&json!({
            "id": "snap_0",
            "omissions": [{"path": "out", "reason": "ignored", "bytes": null}],
        }));
        assert_eq!(snap.covered("out/a").as_deref(), Some("ignored"));
        assert_eq!(snap.covered("output"), None);
        assert_eq!(snap.omitted("out/a"), None);
    }
}
