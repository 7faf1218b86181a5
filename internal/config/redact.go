package config

import (
	"bytes"
	"cmp"
	"errors"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/internal/api"
)

// secretName matches names of keys that have secret values: api_key, key, HF_TOKEN, client-secret. It does not match
// key_file.
const secretName = `(?i)\b(?:[a-z0-9]+[_-])*(?:key|keys_sha256|token|secret|password|passwd|authorization|credentials?)\b`

var (
	isSecret = regexp.MustCompile(`^` + secretName + `$`)
	// userInfo matches the user and the password of a URL. It does not match a space. In a broken file the user or the
	// password may contain spaces: brokenUserInfo matches these.
	userInfo       = regexp.MustCompile(`://[^\s"\x60]+@`)
	brokenUserInfo = regexp.MustCompile(`://[^"\x60\n]+@`)
	// setting matches NAME=VALUE if NAME is the name of a secret, as in a flag, an option of --worker, or a query.
	setting = regexp.MustCompile(secretName + `=[^\s,&"]+`)
	// planted matches a secret in a file, even if the file is not valid YAML: NAME: VALUE, NAME VALUE or NAME=VALUE. A
	// tag, an anchor, a quote or a block indicator may come before the value, and the value may be on the next line. The
	// first group matches what comes before the value. If the secret itself begins with the sign of a tag, an anchor or a
	// block, and has no quotes, this group contains a part of the secret.
	planted = regexp.MustCompile(secretName + `["']?(?:\s*[:=]\s*|[ \t]+)((?:[&!*][^\s]*\s+|[|>][-+0-9]*\s*\n\s*)*)(.*)`)
	// levelKey matches the keys of service levels: their values are times, although their names end like those of secrets.
	levelKey = regexp.MustCompile(`\b(first|per)_token(["']?\s*:)`)
	// nextKey matches the beginning of the next key on the same line, where the value before it ends.
	nextKey = regexp.MustCompile(`,\s*\{?\s*["']?[a-z_]+["']?:\s`)
)

// Redact replaces the user and password of URLs in text, and VALUE in NAME=VALUE if NAME is the name of a secret. A
// command calls it before it prints text from a user or a file.
func Redact(text string) string {
	text = userInfo.ReplaceAllString(text, "://"+api.Redacted+"@")
	return setting.ReplaceAllStringFunc(text, func(s string) string {
		name, _, _ := strings.Cut(s, "=")
		return name + "=" + api.Redacted
	})
}

// withoutSecrets returns err, with the secrets of the file and of cfg removed from its text. In a broken file a secret
// can become a part of any value: a line that lost its colon continues the value of the line before.
func withoutSecrets(err error, data []byte, cfg *Config) error {
	secrets := append(secretsIn(reflect.ValueOf(cfg), "", nil), secretsOf(data)...)
	// The longest secret comes first, because one secret may be a part of another secret.
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	text := err.Error()
	for _, secret := range secrets {
		if len(secret) < shortest || slices.Contains(harmless, secret) {
			continue
		}
		for _, form := range []string{secret, strings.Trim(strconv.Quote(secret), `"`)} {
			text = strings.ReplaceAll(text, form, api.Redacted)
		}
	}
	if text = Redact(text); data != nil {
		text = cutQuotes(brokenUserInfo.ReplaceAllString(text, "://"+api.Redacted+"@"), data)
	}
	return errors.New(text)
}

// cutQuotes shortens the quotes in a message. If a quote of several words is not a part of one line of the file, the
// file is broken, and the quote may contain the value of another key. Then the message keeps only a URL at the
// beginning of the quote.
func cutQuotes(text string, data []byte) string {
	return quoted.ReplaceAllStringFunc(text, func(q string) string {
		i := white.FindStringIndex(q)
		if i == nil {
			return q
		}
		if value, err := strconv.Unquote(q); err == nil && !strings.Contains(value, "\n") && bytes.Contains(data, []byte(value)) {
			return q
		}
		if strings.Contains(q[:i[0]], "://") {
			return q[:i[0]] + ` …"`
		}
		return `"…"`
	})
}

var (
	quoted = regexp.MustCompile(`"(?:[^"\\\n]|\\.)*"`)
	white  = regexp.MustCompile(`[ \t]|\\[ntr]`)
)

// shortest is the least length of a secret that is removed, in bytes. Shorter words such as "is" occur in every
// message. The words in harmless are never secrets.
const shortest = 4

var harmless = []string{"true", "false", "null"}

// secretsOf returns the possible secrets of a file, even if the file is not valid YAML. A possible secret is the text
// after a secret's name, to the end of the line. Each line that continues the value is also a possible secret, and so
// is each single word of these texts. secretsOf skips lines of comments, because no message quotes them.
func secretsOf(data []byte) (found []string) {
	var kept strings.Builder
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") {
			kept.WriteString(line)
		}
	}
	// After this step planted does not find first_token: and per_token:, whose values are no secrets.
	text := levelKey.ReplaceAllString(kept.String(), "${1}_time$2")
	for _, match := range planted.FindAllStringSubmatchIndex(text, -1) {
		for _, word := range strings.FieldsFunc(text[match[2]:match[3]], splits) {
			found = append(found, word, strings.TrimLeft(word, signs))
		}
		first := nextKey.Split(text[match[4]:match[5]], 2)[0]
		// The line has the next key, so this key has no value.
		if strings.HasSuffix(strings.TrimSpace(first), ":") {
			continue
		}
		name := text[strings.LastIndexByte(text[:match[0]], '\n')+1 : match[0]]
		for _, line := range append([]string{first}, continued(text[match[1]:], len(name)-len(strings.TrimLeft(name, " ")))...) {
			value := strings.TrimSpace(line)
			found = append(found, value, strings.Trim(value, `"'{}[], `))
			for _, word := range strings.FieldsFunc(value, splits) {
				found = append(found, word, strings.TrimLeft(word, signs))
			}
		}
	}
	return found
}

// signs have a meaning for YAML at the beginning of a value without quotes. A message may quote the rest of the value.
const signs = "!&*|>%@`?-"

// aKey matches a line that begins with a key.
var aKey = regexp.MustCompile(`^\s*(?:- +)?["']?[\w.-]+["']?:(?:\s|$)`)

// continued returns the lines at the beginning of text that continue a value. The key of the value is indented by
// indent spaces. A line continues the value if it has no key and a larger indent.
func continued(text string, indent int) (lines []string) {
	_, rest, _ := strings.Cut(text, "\n")
	for line := range strings.Lines(rest) {
		bare := strings.TrimLeft(line, " ")
		if strings.TrimSpace(line) != "" && len(line)-len(bare) <= indent || aKey.MatchString(line) {
			break
		}
		lines = append(lines, line)
	}
	return lines
}

// splits reports whether r separates the words of a value.
func splits(r rune) bool { return strings.ContainsRune(" \t\r,{}[]\"'", r) }

// secretsIn returns the secrets in v: the texts whose key has the name of a secret.
func secretsIn(v reflect.Value, key string, found []string) []string {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			found = secretsIn(v.Elem(), key, found)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				found = secretsIn(v.Field(i), cmp.Or(fieldKey(f), f.Name), found)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			found = secretsIn(v.Index(i), key, found)
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			found = secretsIn(it.Value(), it.Key().String(), found)
		}
	case reflect.String:
		if v.Len() > 0 && isSecret.MatchString(key) {
			found = append(found, v.String())
		}
	}
	return found
}
