package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// These are the errors of an answer that is not HTTP/1.1 or HTTP/1.0 in the strict form that the proxy accepts. The
// proxy is strict where proxies have been attacked: it refuses a message whose length can be read in two ways (RFC 9112
// §6.3).
var (
	errHeadTooLarge = errors.New("the answer's header is too large")
	errManyFields   = errors.New("the answer has too many header fields")
	errStatusLine   = errors.New("the answer's status line is malformed")
	errField        = errors.New("a header field of the answer is malformed")
	errFraming      = errors.New("the answer's length is ambiguous")
	errAbandoned    = errors.New("the attempt was abandoned")
	errSwitch       = errors.New("the worker switched the protocol although the request did not ask for it")
)

// field is a header field. Its slices point into the buffer that was parsed.
type field struct{ name, value []byte }

// answerHead is the parsed header of an answer.
type answerHead struct {
	status  int
	minor   int   // minor version of HTTP/1.x
	length  int64 // Content-Length, -1 when not given
	chunked bool
	close   bool // the worker closes the connection after this answer
	stream  bool // Content-Type is text/event-stream
	encoded bool // Content-Encoding is not identity
	fields  []field
	drop    []byte // value of the field Connection: names of fields that must not be forwarded
}

var headEnd = []byte("\r\n\r\n")

// findHead returns the length of the header at the beginning of b, including the empty line at its end. It returns 0
// when the header is not complete yet. seen is the number of bytes at the beginning of b that earlier calls have
// searched.
func findHead(b []byte, seen int) int {
	from := max(0, seen-len(headEnd)+1)
	i := bytes.Index(b[from:], headEnd)
	if i < 0 {
		return 0
	}
	return from + i + len(headEnd)
}

// parse reads b, which is a header including the empty line at its end.
func (h *answerHead) parse(b []byte, maxFields int) error {
	*h = answerHead{length: -1, fields: h.fields[:0]}
	line, rest := cutLine(b)
	if err := h.statusLine(line); err != nil {
		return err
	}
	for {
		line, rest = cutLine(rest)
		if len(line) == 0 {
			break
		}
		if len(h.fields) == maxFields {
			return errManyFields
		}
		f, err := parseField(line)
		if err != nil {
			return err
		}
		h.fields = append(h.fields, f)
		if err := h.note(f); err != nil {
			return err
		}
	}
	if h.chunked && (h.length >= 0 || h.minor == 0) {
		return errFraming
	}
	if h.minor == 0 {
		h.close = true
	}
	return nil
}

// cutLine splits b after its first line. b must contain a line end.
func cutLine(b []byte) (line, rest []byte) {
	i := bytes.Index(b, headEnd[:2])
	return b[:i], b[i+2:]
}

func (h *answerHead) statusLine(b []byte) error {
	// The line is like "HTTP/1.1 200 OK". The reason OK, and the space before it, may be missing.
	if len(b) < 12 || string(b[:7]) != "HTTP/1." || b[7] != '0' && b[7] != '1' || b[8] != ' ' || len(b) > 12 && b[12] != ' ' {
		return errStatusLine
	}
	h.minor = int(b[7] - '0')
	for _, c := range b[9:12] {
		if c -= '0'; c > 9 {
			return errStatusLine
		}
		h.status = h.status*10 + int(c)
	}
	if h.status < 100 || !isText(b[12:]) {
		return errStatusLine
	}
	return nil
}

func parseField(line []byte) (field, error) {
	i := bytes.IndexByte(line, ':')
	if i <= 0 || !isToken(line[:i]) {
		return field{}, errField // a folded line begins with a space, which no field name has
	}
	value := bytes.Trim(line[i+1:], " \t")
	if !isText(value) {
		return field{}, errField
	}
	return field{line[:i], value}, nil
}

// note records a field that the proxy uses: about the length, the end or the content of the message.
func (h *answerHead) note(f field) error {
	switch len(f.name) {
	case len("content-length"):
		if equalFold(f.name, "content-length") {
			n, err := parseLength(f.value)
			if err != nil || h.length >= 0 {
				return errFraming
			}
			h.length = n
		}
	case len("transfer-encoding"):
		if equalFold(f.name, "transfer-encoding") {
			if h.chunked || !equalFold(f.value, "chunked") {
				return errFraming
			}
			h.chunked = true
		}
	case len("connection"):
		if equalFold(f.name, "connection") {
			if h.drop != nil {
				h.close = true // two Connection fields are rare: instead of merging them, the connection is closed
			}
			h.drop = f.value
			h.close = h.close || listed(f.value, "close")
		}
	case len("content-type"):
		if equalFold(f.name, "content-type") {
			kind, _, _ := bytes.Cut(f.value, []byte(";"))
			kind = bytes.TrimRight(kind, " \t")
			h.stream = equalFold(kind, "text/event-stream")
		}
	case len("content-encoding"):
		if equalFold(f.name, "content-encoding") && !equalFold(f.value, "identity") {
			h.encoded = true
		}
	}
	return nil
}

// noBody reports whether an answer of this status to a POST has no body, whatever its header says.
func (h *answerHead) noBody() bool {
	return h.status == http.StatusNoContent || h.status == http.StatusNotModified
}

func parseLength(b []byte) (int64, error) {
	if len(b) == 0 || len(b) > 18 {
		return 0, errFraming
	}
	var n int64
	for _, c := range b {
		if c -= '0'; c > 9 {
			return 0, errFraming
		}
		n = n*10 + int64(c)
	}
	return n, nil
}

// retryAfter returns the pause that the field Retry-After asks for, in seconds or as a date (RFC 9110 §10.2.3). It
// returns 0 when there is none.
func (h *answerHead) retryAfter(now time.Time) time.Duration {
	for _, f := range h.fields {
		if !equalFold(f.name, "retry-after") {
			continue
		}
		if seconds, err := parseLength(f.value); err == nil {
			return time.Duration(min(seconds, 1<<30)) * time.Second
		}
		if at, err := http.ParseTime(string(f.value)); err == nil {
			return max(at.Sub(now), 0)
		}
	}
	return 0
}

// copyTo adds the fields of h to another header. It leaves out fields that belong to the connection, and fields that
// the other header already has.
func (h *answerHead) copyTo(to http.Header) {
	values := make([]string, 0, len(h.fields))
	var kept []string
	if len(to) > 0 {
		kept = make([]string, 0, len(to))
		for name := range to {
			kept = append(kept, name)
		}
	}
	typed := false
next:
	for _, f := range h.fields {
		name := fieldName(f.name)
		if hopByHop(name) || h.drop != nil && listed(h.drop, name) {
			continue
		}
		for _, k := range kept {
			if k == name {
				continue next
			}
		}
		typed = typed || name == "Content-Type"
		values = append(values, fieldValue(f.value))
		one := values[len(values)-1 : len(values) : len(values)]
		if old := to[name]; old != nil {
			one = append(old, one...)
		}
		to[name] = one
	}
	if !typed && to["Content-Type"] == nil {
		to["Content-Type"] = nil // without this, net/http would guess a type
	}
}

// hopByHop reports whether the field with this canonical name belongs to one connection (RFC 9110 §7.6.1), or was used
// by old clients as such a field.
func hopByHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade", "Http2-Settings":
		return true
	}
	return false
}

// fieldName returns the canonical form of a name. It allocates nothing for the names that engines usually send.
func fieldName(b []byte) string {
	switch string(b) {
	case "date", "Date":
		return "Date"
	case "server", "Server":
		return "Server"
	case "content-type", "Content-Type":
		return "Content-Type"
	case "content-length", "Content-Length":
		return "Content-Length"
	case "transfer-encoding", "Transfer-Encoding":
		return "Transfer-Encoding"
	case "cache-control", "Cache-Control":
		return "Cache-Control"
	case "connection", "Connection":
		return "Connection"
	case "x-request-id", "X-Request-Id":
		return "X-Request-Id"
	}
	return http.CanonicalHeaderKey(string(b))
}

// fieldValue returns string(b). It allocates nothing for some values that engines often send.
func fieldValue(b []byte) string {
	switch string(b) {
	case "text/event-stream; charset=utf-8":
		return "text/event-stream; charset=utf-8"
	case "text/event-stream":
		return "text/event-stream"
	case "application/json":
		return "application/json"
	case "uvicorn":
		return "uvicorn"
	case "no-cache":
		return "no-cache"
	}
	return string(b)
}

// equalFold compares ASCII text without regard to case. lower must be in lower case.
func equalFold(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// listed reports whether a comma-separated list has the name. Upper and lower case are equal.
func listed[T []byte | string](list T, name string) bool {
	for i := 0; i < len(list); {
		end := i
		for end < len(list) && list[end] != ',' {
			end++
		}
		item := bytes.Trim([]byte(list[i:end]), " \t")
		if len(item) == len(name) && bytes.EqualFold(item, []byte(name)) {
			return true
		}
		i = end + 1
	}
	return false
}

// isToken reports whether b is a field name: RFC 9110 §5.6.2.
func isToken[T []byte | string](b T) bool {
	for i := 0; i < len(b); i++ {
		if !tokenBytes[b[i]] {
			return false
		}
	}
	return len(b) > 0
}

// isText reports whether b may be in a field value: it has no control characters except the tab.
func isText[T []byte | string](b T) bool {
	for i := 0; i < len(b); i++ {
		if c := b[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

var tokenBytes = func() (t [256]bool) {
	for c := '0'; c <= '9'; c++ {
		t[c] = true
	}
	for c := 'a'; c <= 'z'; c++ {
		t[c], t[c-'a'+'A'] = true, true
	}
	for _, c := range "!#$%&'*+-.^_`|~" {
		t[c] = true
	}
	return t
}()

// protocolError adds to err the URL of the worker whose answer could not be read.
func protocolError(worker string, err error) error {
	return fmt.Errorf("read the answer of %s: %w", worker, err)
}
