package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/warmpath/warmpath"
)

// leaf is one text value in the configuration.
type leaf struct {
	path string
	set  func(value string)
}

// leaves finds every text that can be set in v, and adds one entry to each empty slice.
func leaves(v reflect.Value, path string) (found []leaf) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return leaves(v.Elem(), path)
		}
	case reflect.Struct:
		for _, f := range reflect.VisibleFields(v.Type()) {
			if key := fieldKey(f); f.IsExported() && key != "" {
				found = append(found, leaves(v.FieldByIndex(f.Index), path+"."+key)...)
			}
		}
	case reflect.Slice:
		if v.Len() == 0 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		}
		return leaves(v.Index(0), path+"[0]")
	case reflect.Map:
		if v.Type().Elem().Kind() == reflect.String {
			found = append(found, leaf{path + ".x", func(value string) {
				v.Set(reflect.MakeMap(v.Type()))
				v.SetMapIndex(reflect.ValueOf("x"), reflect.ValueOf(value).Convert(v.Type().Elem()))
			}})
		}
	case reflect.String:
		found = append(found, leaf{path, v.SetString})
	}
	return found
}

const canary = "cAnArY-5f3a"

// texts returns the keys of all texts that a file can set, in Config and in every type of policy. It finds them by
// reflection, so that a new key cannot be forgotten.
func texts(t *testing.T) []string {
	t.Helper()
	var paths []string
	cfg := Config{}
	for _, l := range leaves(reflect.ValueOf(&cfg).Elem(), "") {
		paths = append(paths, strings.TrimPrefix(l.path, "."))
	}
	for _, k := range warmpath.PolicyKinds() {
		p := k.Defaults()
		for _, l := range leaves(reflect.ValueOf(p), "") {
			paths = append(paths, "policies[0]<"+k.Name+">"+l.path)
		}
	}
	if len(paths) < 30 {
		t.Fatalf("only %d texts were found", len(paths))
	}
	return paths
}

// yamlOf returns a file that sets one text.
func yamlOf(path, value string) string {
	kind := ""
	if i := strings.IndexByte(path, '<'); i >= 0 {
		j := strings.IndexByte(path, '>')
		kind, path = path[i+1:j], path[:i]+path[j+1:]
	}
	var out strings.Builder
	indent := ""
	parts := strings.Split(path, ".")
	for i, part := range parts {
		key, list := strings.CutSuffix(part, "[0]")
		out.WriteString(key + ":")
		last := i == len(parts)-1
		indent += "  "
		switch {
		case list && last:
			out.WriteString(" [" + value + "]\n")
		case list:
			out.WriteString("\n" + indent[:len(indent)-2] + "- ")
			if kind != "" {
				out.WriteString("type: " + kind + "\n" + indent)
			}
		case last:
			out.WriteString(" " + value + "\n")
		default:
			out.WriteString("\n" + indent)
		}
	}
	return out.String()
}

// errorOf loads text and returns the error as a string, or "" when there is none.
func errorOf(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path, nil); err != nil {
		return err.Error()
	}
	return ""
}

func TestNoMessageShowsThePasswordOfAURL(t *testing.T) {
	for _, path := range texts(t) {
		for _, value := range []string{"http://user:" + canary + "@host:1", "htp://" + canary + "@host", "'http://a:" + canary + " b@c'",
			"\"http://a:'" + canary + "'@b:1\"", "'http://a:" + canary + "#x@b:1'", "'http://a:" + canary + "/x@b:1'", "'[\"http://a:" + canary + " x@b:1\"]'", "tcp://x:" + canary + "@*:y"} {
			if message := errorOf(t, yamlOf(path, value)); strings.Contains(message, canary) {
				t.Errorf("%s: %s:\n%s", path, value, message)
			}
		}
	}
}

// The file has a secret for each key that can have one. The test breaks each line of the file in many ways.
func TestNoBrokenFileShowsASecret(t *testing.T) {
	file := `listen: ":8080"
policy: routing
admin:
  listen: 127.0.0.1:9090
  key: @
workers:
  - url: http://gpu-1:8000
    api_key: @
    model: m
  - {url: http://gpu-2:8000, api_key: "@", model: n}
  - url: http://gpu-3:8000
    api_key:
      @
  - url: http://gpu-4:8000
    api_key: |
      @
    labels: {token: @, zone: b}
  - url: http://gpu-5:8000
    api_key: begins
      @ and
      ends
    model: m
policies:
  - type: lmcache_aware
    controller_url: http://user:@host:9000
    controller_api_key: @
sync:
  nats: nats://host:4222
  key: @
  user: someone
  password: "@"
index:
  valkey:
    password: @
queue:
  order: fcfs
`
	secrets := 0
	for _, path := range texts(t) { // the file above must have a secret for each key that can have one
		key := path[strings.LastIndexByte(path, '.')+1:]
		if isSecret.MatchString(key) {
			secrets++
			if !strings.Contains(file, key+":") {
				t.Errorf("%s is a secret and not in the test's file", path)
			}
		}
	}
	if secrets < 3 {
		t.Fatalf("only %d secrets were found", secrets)
	}
	// All secrets differ, so that the redaction of one secret does not hide that another secret was not redacted.
	for i := 0; strings.Contains(file, "@"); i++ {
		file = strings.Replace(file, "@", fmt.Sprintf("%s-%02d", canary, i), 1)
	}
	file = strings.Replace(file, "host:9000", "@host:9000", 1)
	lines := strings.SplitAfter(file, "\n")
	tried, refused := 0, 0
	for i, line := range lines {
		bare := strings.TrimSuffix(line, "\n")
		for _, broken := range []string{
			"", "\n", bare, bare + ":\n", strings.Replace(line, ":", "", 1), strings.Replace(line, ": ", ":", 1), strings.Replace(line, ":", " =", 1),
			" " + line, "  " + line, "    " + line, strings.TrimLeft(line, " "), "\t" + line, "- " + line, "? " + line, "} " + line, "] " + line, "\"" + line,
			"'" + line, "x" + line, "{" + line, "[" + line, "!!int " + line, "&a " + line, "*a " + line, "<<: " + line, "%" + line, "@" + line, "`" + line, "|\n" + line,
			line + line, line[:len(line)/2] + "\n", bare + "'\n", bare + "\"\n", bare + "}\n", bare + " [\n", strings.ReplaceAll(line, "\"", ""),
			strings.Replace(line, ": ", ": - ", 1), strings.Replace(line, ": ", ": !!int ", 1), strings.Replace(line, ": ", ": [", 1), strings.Replace(line, ": ", ": {", 1),
			strings.Replace(line, ": ", ": &b ", 1), strings.Replace(line, ": ", ": !", 1), strings.Replace(line, ": ", ": *", 1),
			strings.Replace(line, ": ", ": &", 1), strings.Replace(line, ": ", ": |", 1), strings.Replace(line, ": ", ": !!", 1),
			strings.Replace(line, ": ", ": ![", 1), strings.Replace(line, ": ", ": !a *", 1),
			strings.Replace(line, "_", "", 1), strings.Replace(line, "e", "é", 1), "      " + strings.Replace(line, ":", "", 1), "      " + line,
		} {
			text := strings.Join(lines[:i], "") + broken + strings.Join(lines[i+1:], "")
			message := errorOf(t, text)
			tried++
			if message != "" {
				refused++
			}
			if strings.Contains(message, canary) {
				t.Errorf("line %d as %q:\n%s", i+1, broken, message)
			}
		}
	}
	t.Logf("%d files, %d refused", tried, refused)
}

// A value that begins with a sign of YAML and has no quotes may be a password, and must not be shown.
func TestASecretThatYAMLTakesForATagOrAnAliasIsNotShown(t *testing.T) {
	for _, form := range []string{
		"admin:\n  key: %s\n", "admin: {key: %s}\n", "admin: {key: [%s]}\n", "admin:\n  key:\n    %s\n", "admin:\n  key: %s x\n", "admin:\n  key: &a %s\n",
		"workers:\n  - url: http://a\n    api_key: %s\n", "workers:\n  - url: http://a\n    api_key: %s\n    model: m\n", "workers:\n  - {url: http://a, api_key: %s, model: m}\n",
	} {
		for _, sign := range []string{"!", "!!", "!a!", "*", "&", "|", ">", "@", "%", "? ", "- "} {
			text := fmt.Sprintf(form, sign+canary)
			if message := errorOf(t, text); strings.Contains(message, canary) {
				t.Errorf("%q:\n%s", text, message)
			}
		}
	}
	for sign, want := range map[string]string{
		"!": "2:8: a tag (!…) has no meaning here", "!!": "2:8: a tag (!…) has no meaning here",
		"*": "2:8: there is no anchor (&…) of this alias before it", "|": "2:8: a text block begins on the line after | or >",
	} {
		if message := errorOf(t, "admin:\n  key: "+sign+canary+"\n"); !strings.Contains(message, want) {
			t.Errorf("%s: %q, want %q in it", sign, message, want)
		}
	}
}

func TestRedactLeavesOtherTextAlone(t *testing.T) {
	for text, want := range map[string]string{
		`parse "http://u:p@h:1": x`:                        `parse "http://[redacted]@h:1": x`,
		`http://a,api_key=s3cret,model=m`:                  `http://a,api_key=[redacted],model=m`,
		`load http://u:p@h --model-path hub:o/n@v1`:        `load http://[redacted]@h --model-path hub:o/n@v1`,
		`load http://h --model-path hub:o/n@v1`:            `load http://h --model-path hub:o/n@v1`,
		`unknown flag: --admin-key=abc`:                    `unknown flag: --admin-key=[redacted]`,
		`--worker http://a,model=m --policy kv:weight=2`:   `--worker http://a,model=m --policy kv:weight=2`,
		`ipc:///run/events, tcp://*:5557`:                  `ipc:///run/events, tcp://*:5557`,
		`admin.key_file: open /etc/key_file=x: is missing`: `admin.key_file: open /etc/key_file=x: is missing`,
	} {
		if got := Redact(text); got != want {
			t.Errorf("%s\nbecame %s", text, got)
		}
	}
}

func TestMessagesKeepTheirSenseWhereSecretsAreShort(t *testing.T) {
	err := withoutSecrets(errors.New("f.yaml:3:4: a worker is written as url: http://a"), []byte("admin: {key: is}\nworkers:\n  - api_key: a\n"), &Config{})
	if want := "f.yaml:3:4: a worker is written as url: http://a"; err.Error() != want {
		t.Errorf("%s", fmt.Sprint(err))
	}
}
