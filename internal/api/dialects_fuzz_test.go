package api

import (
	"bytes"
	"encoding/json"
	"io"
	"mime/multipart"
	"testing"
)

// FuzzDialects reads an answer of any dialect in pieces of two sizes. Both Watchers must report the same.
func FuzzDialects(f *testing.F) {
	for i, a := range answers {
		f.Add([]byte(a.text), uint8(a.dialect), i+1, a.format == EventStream)
	}
	f.Add([]byte(`{"score"t1`), uint8(Rerank), 1, false)
	f.Fuzz(func(t *testing.T, body []byte, d uint8, n int, events bool) {
		format := JSON
		if events {
			format = EventStream
		}
		type report struct {
			Finished, Failed, Answers, Complete, Done, Whole, Token bool
			Usage                                                   Usage
			ID, Model, Error                                        string
			Code, Events, Tokens                                    int
		}
		read := func(size int) report {
			var w Watcher
			w.Reset(Dialect(d)%numDialects, format)
			for rest := body; len(rest) > 0; {
				piece := rest[:min(size, len(rest))]
				rest = rest[len(piece):]
				if w.Feed(piece); w.Failed() && events {
					break // the rest is not read: see Feed
				}
			}
			w.End()
			return report{w.Finished(), w.Failed(), w.Answers(), w.Complete(), w.Done(), w.Whole(), w.FirstToken(), w.Usage(),
				string(w.ID()), string(w.Model()), w.ErrorText(), w.ErrorCode(), w.Events(), w.Tokens()}
		}
		whole, parts := read(len(body)+1), read(max(1, n))
		if whole != parts {
			t.Fatalf("%v in one piece: %+v\nin pieces of %d: %+v", Dialect(d)%numDialects, whole, n, parts)
		}
	})
}

// FuzzDialectRequests reads a request of any dialect. What is accepted must be JSON, and the error must be in the shape
// of the dialect.
func FuzzDialectRequests(f *testing.F) {
	f.Add([]byte(`{"model":"m","system":"x","messages":[{"role":"user","content":"hi"}],"metadata":{"user_id":"u"}}`), uint8(AnthropicMessages))
	f.Add([]byte(`{"model":"m","input":"hi","previous_response_id":"resp_1","text":{}}`), uint8(OpenAIResponses))
	f.Add([]byte(`{"text":["a"],"input_ids":[[1],[2]],"sampling_params":{"n":2},"lora_path":"x"}`), uint8(SGLangGenerate))
	f.Add([]byte(`{"model":"m","input":"hi","encoding_format":"bytes"}`), uint8(OpenAIEmbeddings))
	f.Fuzz(func(t *testing.T, body []byte, d uint8) {
		dialect := Dialect(d) % numDialects
		before := bytes.Clone(body)
		var r Request
		err := Read(dialect, body, &r)
		if !bytes.Equal(before, body) {
			t.Fatal("the body was changed")
		}
		if err == nil {
			var m map[string]json.RawMessage
			if err := json.Unmarshal(body, &m); err != nil {
				t.Fatalf("accepted what encoding/json refuses: %v", err)
			}
			for f := range numFields {
				if raw, want := r.Raw(f), m[f.String()]; dialects[dialect].reads.has(f) && !bytes.Equal(bytes.TrimSpace(want), raw) {
					t.Fatalf("%v: raw %q, encoding/json %q", f, raw, want)
				}
			}
		} else if e := AsError(err); e.Status != 400 || !json.Valid(dialect.AppendError(nil, e)) {
			t.Fatalf("error %#v", err)
		}
	})
}

// FuzzForm compares the model of a form with what mime/multipart reads. The router may miss a model, but must not find
// another one than the engine.
func FuzzForm(f *testing.F) {
	f.Add([]byte("--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--\r\n"), "b")
	f.Add([]byte("x\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"model\"\r\n\r\n--b\r\n\r\n--b--"), "b")
	f.Fuzz(func(t *testing.T, body []byte, boundary string) {
		if boundary == "" || len(boundary) > 70 {
			return
		}
		got, err := formField(body, boundary, "model")
		ok := err == nil && got != nil
		form := multipart.NewReader(bytes.NewReader(body), boundary)
		for ok {
			part, err := form.NextRawPart()
			if err != nil {
				return // the engine refuses the form
			}
			if part.FormName() != "model" || part.FileName() != "" {
				continue
			}
			want, err := io.ReadAll(part)
			if err == nil && !bytes.Equal(got, want) {
				t.Fatalf("the model is %q, mime/multipart reads %q", got, want)
			}
			return
		}
	})
}
