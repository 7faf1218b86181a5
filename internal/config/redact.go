package config

import (
	"errors"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// Redacted stands where a secret stood.
const Redacted = "[redacted]"

// secretName is how keys are named whose values are secret: api_key, key, HF_TOKEN, client-secret; not key_file.
const secretName = `(?i)\b(?:[a-z0-9]+[_-])*(?:key|token|secret|password|passwd|authorization|credentials?)\b`

var (
	isSecret = regexp.MustCompile(`^` + secretName + `$`)
	// userInfo is what stands between a URL's scheme and its host.
	userInfo = regexp.MustCompile(`://[^"'\x60\n]+@`)
	// setting is NAME=VALUE where NAME is that of a secret: a flag, an option of --worker, a query.
	setting = regexp.MustCompile(secretName + `=[^\s,&"]+`)
	// planted is a secret in a file, also in one that is no YAML: NAME: VALUE, NAME VALUE and NAME=VALUE, the value
	// perhaps behind a tag, an anchor, a quote or the sign of a block, and on the next line.
	planted = regexp.MustCompile(secretName + `["']?(?:\s*[:=]\s*|[ \t]+)(?:[&!][^\s]*\s+|[|>][-+0-9]*\s*\n\s*)*(.*)`)
	// nextKey is where the value before it ends, on one line.
	nextKey = regexp.MustCompile(`,\s*["']?[a-z_]+["']?:\s`)
)

// Redact returns text without the user and password of URLs, and without VALUE in NAME=VALUE where NAME is the name of
// a secret. A command calls it before it prints text that a user typed or a file holds.
func Redact(text string) string {
	text = userInfo.ReplaceAllString(text, "://"+Redacted+"@")
	return setting.ReplaceAllStringFunc(text, func(s string) string {
		name, _, _ := strings.Cut(s, "=")
		return name + "=" + Redacted
	})
}

// withoutSecrets returns err without the secrets of the file and of cfg in its text. In a broken file a secret can
// become a part of any value: a line that lost its colon continues the value of the line before.
func withoutSecrets(err error, data []byte, cfg *Config) error {
	text := err.Error()
	for _, secret := range append(secretsIn(reflect.ValueOf(cfg), "", nil), secretsOf(data)...) {
		for _, form := range []string{secret, strings.Trim(strconv.Quote(secret), `"`)} {
			text = strings.ReplaceAll(text, form, Redacted)
		}
	}
	return errors.New(Redact(text))
}

// shortest is the length in bytes from which a piece of a file's text counts as a secret. Shorter words such as "is"
// are in every message.
const shortest = 4

// secretsOf returns the possible secrets of a file, which need not be valid YAML: the text from a secret's name to the
// end of its line, whole and word by word. It skips comments: no message quotes them.
func secretsOf(data []byte) (found []string) {
	var kept strings.Builder
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") {
			kept.WriteString(line)
		}
	}
	for _, match := range planted.FindAllStringSubmatch(kept.String(), -1) {
		value := strings.TrimSpace(nextKey.Split(match[1], 2)[0])
		if strings.HasSuffix(value, ":") { // the next key: this one has no value
			continue
		}
		for _, piece := range append([]string{value, strings.Trim(value, `"'{}[], `)}, strings.FieldsFunc(value, splits)...) {
			if len(piece) >= shortest && piece != "true" && piece != "false" && piece != "null" {
				found = append(found, piece)
			}
		}
	}
	return found
}

// splits reports whether r ends a word of a value.
func splits(r rune) bool { return strings.ContainsRune(" \t\r,{}[]\"'", r) }

// secretsIn returns the secrets in v: the texts whose keys are named so.
func secretsIn(v reflect.Value, key string, found []string) []string {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			found = secretsIn(v.Elem(), key, found)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
				if name == "-" || name == "" {
					name = f.Name
				}
				found = secretsIn(v.Field(i), name, found)
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
