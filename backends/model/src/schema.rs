//! The schemas of what is written as JSON by hand.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::path::RelPath;

/// Bytes as [`serialize_lossless`](crate::path::serialize_lossless) writes them.
pub struct LosslessText;

impl JsonSchema for LosslessText {
    fn schema_name() -> Cow<'static, str> {
        "LosslessText".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A string, or an object with the bytes where they are not UTF-8.",
            "anyOf": [
                { "type": "string" },
                {
                    "type": "object",
                    "properties": {
                        "base64": { "type": "string", "contentEncoding": "base64" },
                    },
                    "required": ["base64"],
                },
            ],
        })
    }
}

impl JsonSchema for RelPath {
    fn schema_name() -> Cow<'static, str> {
        "RelPath".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = LosslessText::json_schema(generator);
        let description = "A path within the workspace: a string, or an object with the bytes where they are not \
                           UTF-8. The workspace itself is the empty string.";
        schema.insert("description".to_owned(), description.into());
        schema
    }
}
