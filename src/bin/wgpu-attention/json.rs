//! JSON that is read: a key that an object has twice is refused at any depth. Serde's maps
//! would keep the last one.

use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::report::shown;

/// Parses a document.
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice::<Unique>(bytes)?;
    serde_json::from_slice(bytes)
}

/// Any value whose objects have each key once.
struct Unique;

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Unique, D::Error> {
        from.deserialize_any(Unique)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Unique;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unique, A::Error> {
        let mut keys = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if keys.contains(&key) {
                return Err(A::Error::custom(format_args!(
                    "{} is in it twice",
                    shown(&key)
                )));
            }
            keys.insert(key);
            map.next_value::<Unique>()?;
        }
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Unique, A::Error> {
        while list.next_element::<Unique>()?.is_some() {}
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Unique, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Unique, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Unique, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Unique, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Unique, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Unique, E> {
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::read;
    use serde_json::{Value, json};

    #[test]
    fn a_key_that_is_there_twice_is_refused() {
        let text = r#"{"a": [1, -2, 0.5, "b", null, true, {"a": {}}], "b": {"a": 1}}"#;
        let value: Value = read(text.as_bytes()).unwrap();
        assert_eq!(value["b"], json!({"a": 1}));
        for (text, key) in [
            (r#"{"a": 1, "a": 1}"#, "a"),
            (r#"{"x": [{"b": 1, "c": 2, "\u0062": 3}]}"#, "b"),
        ] {
            let refused = read::<Value>(text.as_bytes()).unwrap_err().to_string();
            assert!(
                refused.starts_with(&format!("{key} is in it twice")),
                "{refused}"
            );
        }
    }
}
