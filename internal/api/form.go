package api

import (
	"bytes"
	"mime"
	"strings"
)

// maxFormParts is the number of parts of a form that are looked at. The forms of /v1/audio and /v1/images have fewer
// than 20 fields, and an edit of an image may have 16 images.
const maxFormParts = 64

// ReadAs reads body as Read does. For a dialect whose bodies may be something else than JSON, it reads a form by its
// fields, and leaves all other bodies unread: such a request names no model.
func ReadAs(d Dialect, contentType string, body []byte, r *Request) error {
	if !d.Unchecked() {
		return Read(d, body, r)
	}
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		kind = ""
	}
	if kind == "application/json" && d != OpenAIResponse {
		return Read(d, body, r)
	}
	r.reset(d, body)
	r.finish()
	r.Model = ""
	if kind == "multipart/form-data" && params["boundary"] != "" && d != OpenAIResponse {
		if model, ok := formField(body, params["boundary"], "model"); ok && len(model) <= maxStringBytes {
			r.Model = string(model)
		}
	}
	return nil
}

// formField returns the value of the first field with that name in a form that is separated by boundary. The work is
// bounded: each byte is looked at once, and at most maxFormParts parts are read.
func formField(body []byte, boundary, name string) (value []byte, ok bool) {
	mark := []byte("--" + boundary)
	if !bytes.HasPrefix(body, mark) {
		at := bytes.Index(body, append([]byte("\r\n"), mark...))
		if at < 0 {
			return nil, false
		}
		body = body[at+2:]
	}
	body = body[len(mark):]
	mark = append([]byte("\r\n"), mark...)
	for range maxFormParts {
		rest, more := bytes.CutPrefix(body, []byte("\r\n"))
		if !more {
			return nil, false
		}
		end := bytes.Index(rest, mark)
		if end < 0 {
			return nil, false
		}
		head, content, found := bytes.Cut(rest[:end], []byte("\r\n\r\n"))
		if found && len(head) <= maxPartHead && partName(head) == name {
			return content, true
		}
		body = rest[end+len(mark):]
	}
	return nil, false
}

// maxPartHead is the longest header of a part that is read, in bytes. A longer header has no field that the router
// needs.
const maxPartHead = 1024

// partName returns the name of a part of a form, "" for a part that is a file.
func partName(head []byte) string {
	for line := range strings.SplitSeq(string(head), "\r\n") {
		field, value, _ := strings.Cut(line, ":")
		if !strings.EqualFold(field, "Content-Disposition") {
			continue
		}
		_, params, err := mime.ParseMediaType(strings.TrimSpace(value))
		if _, file := params["filename"]; err == nil && !file {
			return params["name"]
		}
	}
	return ""
}
