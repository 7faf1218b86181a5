// unidump prints the properties of every code point in Hugging Face's Rust tokenizer, as runs "table start end value".
// gen.go packs the output into ../../unicode.bin; see gen.sh.
use onig::Regex as Onig;
use unicode_categories::UnicodeCategories;
use unicode_normalization_alignments::char::{canonical_combining_class, compose, decompose_canonical, decompose_compatible, is_combining_mark};

const CATEGORIES: &[&str] = &[
    "Cc", "Cf", "Co", "Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl", "No", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Sc", "Sk",
    "Sm", "So", "Zl", "Zp", "Zs",
];
const SCRIPTS: &[&str] = &["Han", "Hiragana", "Katakana", "Hangul", "Latin", "Cyrillic", "Greek", "Thai", "Arabic", "Hebrew", "Devanagari"];

fn chars() -> impl Iterator<Item = char> {
    (0u32..0x110000).filter_map(char::from_u32)
}

fn runs(table: &str, value: impl Fn(char) -> String) {
    let mut start: Option<(u32, String)> = None;
    let mut last = 0u32;
    for c in chars() {
        let v = value(c);
        let same = matches!(&start, Some((_, s)) if *s == v && (last + 1 == c as u32));
        if !same {
            if let Some((s, v)) = start.take() {
                if v != "-" {
                    println!("{table} {s:x} {last:x} {v}");
                }
            }
            start = Some((c as u32, v));
        }
        last = c as u32;
    }
    if let Some((s, v)) = start {
        if v != "-" {
            println!("{table} {s:x} {last:x} {v}");
        }
    }
}

fn onig_set(class: &str) -> Vec<bool> {
    let re = Onig::new(&format!("^{class}$")).unwrap();
    (0u32..0x110000).map(|c| char::from_u32(c).is_some_and(|c| c != '\n' && re.is_match(&c.to_string()) )).collect()
}

fn flag(b: bool) -> String {
    if b { "1".into() } else { "-".into() }
}

fn hex(s: impl Iterator<Item = char>) -> String {
    s.map(|c| format!("{:x}", c as u32)).collect::<Vec<_>>().join(",")
}

fn main() {
    let mut sets: Vec<(String, Vec<bool>)> = vec![];
    for cat in CATEGORIES {
        sets.push((cat.to_string(), onig_set(&format!("\\p{{{cat}}}"))));
    }
    sets[0].1[10] = true; // "\n" is Cc; "^.$" above cannot tell
    runs("category", |c| sets.iter().find(|(_, s)| s[c as usize]).map_or("-".into(), |(n, _)| n.clone()));
    for s in SCRIPTS {
        let set = onig_set(&format!("\\p{{{s}}}"));
        runs(&format!("script:{s}"), |c| flag(set[c as usize]));
    }
    for (name, class) in [("onig_space", "\\s"), ("onig_word", "\\w"), ("onig_digit", "\\d")] {
        let set = onig_set(class);
        runs(name, |c| flag(set[c as usize] || (name == "onig_space" && c == '\n')));
    }
    let word = regex::Regex::new(r"^\w$").unwrap();
    runs("regex_word", |c| flag(word.is_match(&c.to_string())));
    runs("old_punctuation", |c| flag(c.is_punctuation()));
    runs("old_other", |c| flag(c.is_other()));
    runs("old_nonspacing", |c| flag(c.is_mark_nonspacing()));
    runs("old_combining", |c| flag(is_combining_mark(c)));
    runs("numeric", |c| flag(c.is_numeric()));
    for c in chars() {
        let low: String = c.to_lowercase().collect();
        if low != c.to_string() {
            println!("lower {:x} {:x} {}", c as u32, c as u32, hex(low.chars()));
        }
    }
    runs("ccc", |c| match canonical_combining_class(c) { 0 => "-".into(), n => n.to_string() });
    let mut pairs = vec![];
    for c in chars() {
        if (0xAC00..=0xD7A3).contains(&(c as u32)) {
            continue; // Hangul syllables are arithmetic
        }
        let (mut canon, mut compat) = (vec![], vec![]);
        decompose_canonical(c, |x| canon.push(x));
        decompose_compatible(c, |x| compat.push(x));
        if canon != [c] {
            println!("canonical {:x} {:x} {}", c as u32, c as u32, hex(canon.iter().copied()));
        }
        if compat != canon {
            println!("compatible {:x} {:x} {}", c as u32, c as u32, hex(compat.iter().copied()));
        }
        if canon.len() >= 2 {
            pairs.push((c, canon));
        }
    }
    // The first code point of a composition may itself be a composition. So this loop tries every starter that composes,
    // with every last mark.
    let mut lasts: Vec<char> = pairs.iter().map(|(_, d)| *d.last().unwrap()).collect();
    lasts.sort();
    lasts.dedup();
    for a in chars() {
        if (0x1100..0x1200).contains(&(a as u32)) || (0xAC00..=0xD7A3).contains(&(a as u32)) {
            continue;
        }
        for &b in &lasts {
            if let Some(c) = compose(a, b) {
                println!("compose {:x} {:x} {:x}", a as u32, b as u32, c as u32);
            }
        }
    }
}
