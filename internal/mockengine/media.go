package mockengine

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/valyala/fastjson"
)

// readForm reads a form and checks its model. It answers the request itself if something is wrong.
func (l *life) readForm(w http.ResponseWriter, r *http.Request) bool {
	r.Body = http.MaxBytesReader(w, r.Body, l.cfg.BodyLimit)
	if err := r.ParseMultipartForm(1 << 20); err != nil {
		l.refuse(w, http.StatusBadRequest, err.Error())
		return false
	}
	var g generation
	if err := g.readModel(fastjson.MustParseBytes(encoded(fields{"model": r.FormValue("model")})), l); err != nil {
		l.refuseRequest(w, err)
		return false
	}
	return true
}

// transcribe answers how many bytes of sound it got.
func (l *life) transcribe(w http.ResponseWriter, r *http.Request) {
	if !l.readForm(w, r) {
		return
	}
	file, _, err := r.FormFile("file")
	if err != nil {
		l.refuse(w, http.StatusBadRequest, "file: field required")
		return
	}
	n, err := io.Copy(io.Discard, file)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	text := fmt.Sprintf("%d bytes of sound", n)
	if r.FormValue("response_format") == "text" {
		writeBytes(w, http.StatusOK, "text/plain; charset=utf-8", []byte(text+"\n"))
		return
	}
	writeJSON(w, http.StatusOK, fields{"text": text, "usage": fields{"type": "duration", "seconds": 1}})
}

// speak answers with a WAVE file of silence: one sample for each byte of the text.
func (l *life) speak(w http.ResponseWriter, r *http.Request) {
	l.withModel(w, r, func(in fields) {
		text, _ := in["input"].(string)
		n := len(text)
		header := append([]byte("RIFF"), byte(36+n), byte((36+n)>>8), byte((36+n)>>16), 0)
		header = append(header, "WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00\x40\x1f\x00\x00\x01\x00\x08\x00data"...)
		header = append(header, byte(n), byte(n>>8), byte(n>>16), 0)
		silence := make([]byte, n)
		for i := range silence {
			silence[i] = 0x80
		}
		writeBytes(w, http.StatusOK, "audio/wav", append(header, silence...))
	})
}

// pixel is a PNG file of one pixel.
const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="

// draw answers with an image of one pixel.
func (l *life) draw(w http.ResponseWriter, r *http.Request) {
	answer := func(fields) {
		writeJSON(w, http.StatusOK, fields{"created": time.Now().Unix(), "data": []any{fields{"b64_json": pixel}}})
	}
	if r.URL.Path == "/v1/images/edits" {
		if l.readForm(w, r) {
			answer(nil)
		}
		return
	}
	l.withModel(w, r, answer)
}

// withModel reads the body and checks its model, and calls f.
func (l *life) withModel(w http.ResponseWriter, r *http.Request, f func(in fields)) {
	l.withBody(w, r, func(body *fastjson.Value) {
		var g generation
		in, err := asMap(body)
		if err == nil {
			err = g.readModel(body, l)
		}
		if err != nil {
			l.refuseRequest(w, err)
			return
		}
		f(in)
	})
}
