package gateway

import (
	"net/http"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/connector"
)

// refuseForeign returns an error if the client sets a field that only the router may set, in the body or in the header:
// such a field makes an engine read or write the memory of another engine.
func refuseForeign(body []byte, h http.Header) error {
	for name := range h {
		if connector.ForeignHeader(name) {
			return api.Invalid("", "the header field "+name+" says between which engines KV blocks move: only the router sets it; leave it out")
		}
	}
	if field, found := connector.Foreign(body); found {
		return api.Invalid(field, field+" says between which engines KV blocks move: only the router sets it; leave it out")
	}
	return nil
}
