package proxy

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/internal/network"
)

const (
	headerRequestID = "X-Request-Id"
	// maxRequestID is the greatest length of a client's request id that is forwarded. The id is written to logs and
	// into the engine's state.
	maxRequestID = 128
)

// RequestID returns the client's X-Request-Id if it can be forwarded (1 to 128 visible ASCII characters), else a new
// random id.
func RequestID(h http.Header) string {
	if ids := h[headerRequestID]; len(ids) == 1 && len(ids[0]) <= maxRequestID && visible(ids[0]) {
		return ids[0]
	}
	var raw [16]byte
	rand.Read(raw[:]) // never fails: crypto/rand
	var text [2 * len(raw)]byte
	hex.Encode(text[:], raw[:])
	return string(text[:])
}

func visible(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return s != ""
}

// appendHead appends the request line and the header of an attempt.
func (w *worker) appendHead(dst []byte, a *Attempt) ([]byte, error) {
	method := cmp.Or(a.Method, http.MethodPost)
	if !strings.HasPrefix(a.Path, "/") || !visible(a.Path) || !visible(w.Host) || !isToken(method) {
		return dst, fmt.Errorf("write request line %q %q: malformed", method, a.Path)
	}
	dst = append(append(dst, method...), ' ')
	dst = append(dst, w.Prefix...)
	dst = append(dst, a.Path...)
	dst = append(dst, " HTTP/1.1\r\nHost: "...)
	dst = append(dst, w.Host...)
	dst = append(dst, "\r\n"...)
	var err error
	ownKey := w.SendsKey(a.Header)
	for name, values := range a.Header {
		if a.drops(name) || ownKey && network.KeyField(name) {
			continue
		}
		for _, v := range values {
			if dst, err = appendField(dst, name, v); err != nil {
				return dst, err
			}
		}
	}
	for _, f := range a.Set {
		if f.Value == "" || ownField(http.CanonicalHeaderKey(f.Name)) {
			continue
		}
		if dst, err = appendField(dst, f.Name, f.Value); err != nil {
			return dst, err
		}
	}
	if ownKey {
		if dst, err = appendField(dst, "Authorization", "Bearer "+w.Key); err != nil {
			return dst, errKey
		}
	}
	if a.RequestID != "" {
		if dst, err = appendField(dst, headerRequestID, a.RequestID); err != nil {
			return dst, err
		}
	}
	if len(a.Body) == 0 && method != http.MethodPost {
		return append(dst, "\r\n"...), nil
	}
	dst = append(dst, "Content-Length: "...)
	dst = strconv.AppendInt(dst, int64(len(a.Body)), 10)
	return append(dst, "\r\n\r\n"...), nil
}

// errKey does not quote the key.
var errKey = errors.New("write the worker's api_key: it has characters that a header field may not have")

// drops reports whether the client's field with this canonical name is not forwarded.
func (a *Attempt) drops(name string) bool {
	if ownField(name) || name == headerRequestID && a.RequestID != "" {
		return true
	}
	for _, f := range a.Set {
		if strings.EqualFold(f.Name, name) {
			return true
		}
	}
	for _, list := range a.Header["Connection"] {
		if listed(list, name) {
			return true
		}
	}
	return false
}

// ownField reports whether a field is never copied from the client, because the proxy writes the field itself or leaves
// it out.
func ownField(name string) bool {
	switch name {
	case "Host", "Content-Length", "Expect", "Accept-Encoding":
		return true
	}
	return hopByHop(name)
}

func appendField(dst []byte, name, value string) ([]byte, error) {
	if !isToken(name) || !isText(value) {
		return dst, fmt.Errorf("write header field %q: malformed", name)
	}
	dst = append(dst, name...)
	dst = append(dst, ": "...)
	dst = append(dst, value...)
	return append(dst, "\r\n"...), nil
}
