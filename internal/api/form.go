package api

import (
	"bytes"
	"fmt"
	"mime"
	"strings"
)

// maxFormParts is the number of parts of a form that are read. Starlette, the web framework of the engines, takes 1,000
// fields and 1,000 files.
const maxFormParts = 1000

// ReadAs reads body as Read does. For a dialect whose bodies may be something else than JSON, it reads a form by its
// fields, and leaves bodies that are neither a form nor a JSON object unread: such a request names no model.
//
// The router and the engine must find the same model, because tenants may not use every model. So a body that looks
// like JSON is read as JSON, whatever its type says: engines accept further types, and some accept none. And a form is
// refused unless it is read to its end and has the field once: engines use the last one.
func ReadAs(d Dialect, contentType string, body []byte, r *Request) error {
	if !d.Unchecked() {
		return Read(d, body, r)
	}
	kind, params, err := mime.ParseMediaType(contentType)
	form := strings.HasPrefix(strings.ToLower(strings.TrimSpace(contentType)), "multipart/")
	if d != OpenAIResponse && !form && (kind == "application/json" || bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{"))) {
		return Read(d, body, r)
	}
	r.reset(d, body)
	r.finish()
	r.Model = ""
	if d == OpenAIResponse || !form {
		return nil
	}
	if err != nil || params["boundary"] == "" {
		return Invalid("", "the Content-Type of the form has no boundary that can be read")
	}
	model, err := formField(body, params["boundary"], "model")
	if err == nil && len(model) > maxStringBytes {
		err = Invalid("model", fmt.Sprintf("the model's name has %d bytes, more than %d", len(model), maxStringBytes))
	}
	if err != nil {
		return err
	}
	r.Model = string(model)
	return nil
}

// formField returns the value of the field with that name in a form that is separated by boundary; nil if the form does
// not have the field. The work is bounded: each byte is looked at once, and at most maxFormParts parts are read.
func formField(body []byte, boundary, name string) (value []byte, err error) {
	mark := []byte("--" + boundary)
	rest, ok := bytes.CutPrefix(body, mark)
	if !ok {
		_, rest, ok = bytes.Cut(body, append([]byte("\r\n"), mark...))
	}
	mark = append([]byte("\r\n"), mark...)
	seen := false
	for range maxFormParts {
		if ok && bytes.HasPrefix(rest, []byte("--")) {
			return value, nil
		}
		if rest, ok = bytes.CutPrefix(rest, []byte("\r\n")); !ok {
			break
		}
		var part []byte
		if part, rest, ok = bytes.Cut(rest, mark); !ok {
			break
		}
		head, content, found := bytes.Cut(part, []byte("\r\n\r\n"))
		if !found || len(head) > maxPartHead {
			return nil, Invalid("", fmt.Sprintf("a part of the form has no header, or one of more than %d bytes", maxPartHead))
		}
		switch is, certain := partName(head); {
		case !certain:
			return nil, Invalid("", "a part of the form has no Content-Disposition that can be read")
		case is != name:
			continue
		case seen:
			return nil, Invalid(name, "the field "+Quoted(name)+" stands twice in the form; send it once")
		}
		seen, value = true, content
	}
	return nil, Invalid("", fmt.Sprintf("the body is not a form of at most %d parts that ends with its boundary", maxFormParts))
}

// maxPartHead is the longest header of a part that is read, in bytes. The name of a file has up to 255 characters, and
// each may be written with 9 bytes.
const maxPartHead = 8 << 10

// partName returns the name of a part of a form, "" for a part that is a file. ok is false if the name is not certain.
func partName(head []byte) (name string, ok bool) {
	found := false
	for line := range strings.SplitSeq(string(head), "\r\n") {
		field, value, _ := strings.Cut(line, ":")
		if !strings.EqualFold(strings.TrimSpace(field), "Content-Disposition") {
			continue
		}
		_, params, err := mime.ParseMediaType(strings.TrimSpace(value))
		if err != nil || found {
			return "", false
		}
		found = true
		if _, file := params["filename"]; !file {
			name = params["name"]
		}
	}
	return name, found
}
