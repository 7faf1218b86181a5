package admin

import (
	_ "embed"
	"net/http"
)

// openAPI describes all routes. Tests compare it with the routes, with the types of the answers, and with the answers
// of a running router. `go test ./internal/admin -update` writes the schemas of the types.
//
//go:embed openapi.json
var openAPI []byte

// describe answers GET /openapi.json.
func describe(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(openAPI) // an error means that the client is gone
}
