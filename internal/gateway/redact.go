package gateway

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"github.com/warmpath/warmpath/internal/api"
)

// A log shows neither credentials nor their beginnings, because error texts may cut a value off. shortestKey is the
// least length of a credential's beginning that is blanked. shortestValue is the least length of any other value in the
// request's header that is blanked. Shorter texts are too common.
const (
	shortestKey   = 6
	shortestValue = 8
)

// publicFields are header fields without secrets. Their values are common words in error texts.
var publicFields = []string{"Accept", "Accept-Encoding", "Accept-Language", "Connection", "Content-Length", "Content-Type"}

// redacted returns a worker's text as logs and records may show it. The worker may repeat values of the request's
// header and query, whole, in part or escaped: these are blanked.
func redacted(text string, r *http.Request) string {
	for name, values := range r.Header {
		shortest := shortestValue
		switch {
		case slices.Contains(publicFields, name):
			continue
		case slices.Contains(credentials, name):
			shortest = shortestKey
		}
		for _, value := range values {
			text = blank(text, value, shortest)
		}
	}
	if r.URL.RawQuery != "" {
		text = blank(text, r.URL.RawQuery, shortestValue)
		if query, err := url.QueryUnescape(r.URL.RawQuery); err == nil {
			text = blank(text, query, shortestValue)
		}
	}
	return text
}

// blank returns text without value and without the parts of value. Parts are the scheme and the key of a credential,
// names and values of a list, and the pieces between characters that may be escaped.
func blank(text, value string, shortest int) string {
	text = blankPart(text, value, shortest)
	for _, part := range strings.FieldsFunc(value, separates) {
		if strings.EqualFold(part, "bearer") {
			continue
		}
		text = blankPart(text, part, shortest)
		for _, word := range strings.FieldsFunc(part, escapes) {
			text = blankPart(text, word, shortest)
		}
	}
	return text
}

func separates(r rune) bool { return strings.ContainsRune(" \t;,=&", r) }

func escapes(r rune) bool { return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) }

// blankPart returns text without part, and without the beginnings of part.
func blankPart(text, part string, shortest int) string {
	if len(part) < shortest {
		return text
	}
	for from := 0; ; {
		i := strings.Index(text[from:], part[:shortest])
		if i < 0 {
			return text
		}
		i += from
		n := shortest
		for n < len(part) && i+n < len(text) && text[i+n] == part[n] {
			n++
		}
		text = text[:i] + api.Redacted + text[i+n:]
		from = i + len(api.Redacted)
	}
}
