package gateway

import (
	_ "embed"
	"net/http"
)

// openAPI describes all routes. A test compares it with routes, and with the answers of a running router.
//
//go:embed openapi.json
var openAPI []byte

// describe answers GET /openapi.json.
func (g *Gateway) describe(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(openAPI) // an error means that the client is gone
}
