package gateway_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/test/testenv"
)

// A new route without a description fails here, and so does a description of a path that has no route.
func TestEveryRouteIsDescribed(t *testing.T) {
	parameter := regexp.MustCompile(`\{\w+\}`)
	described := map[string][]string{} // the methods that are described, by the path of the route
	for _, o := range testenv.ReadOpenAPI(t, gateway.OpenAPI).Operations() {
		path := parameter.ReplaceAllString(o.Path, "x")
		methods := strings.Split(gateway.MethodsOf(path), ", ")
		if !slices.Contains(methods, o.Method) {
			t.Errorf("%s %s is described, but the gateway has no such route", o.Method, o.Path)
		}
		for _, route := range gateway.AllPaths() {
			if route == path || strings.HasSuffix(route, "/") && strings.HasPrefix(path, route) {
				described[route] = append(described[route], o.Method)
			}
		}
	}
	for _, route := range gateway.AllPaths() {
		for _, method := range strings.Split(gateway.MethodsOf(route+strings.Repeat("x", strings.Count(route[len(route)-1:], "/"))), ", ") {
			if method != "HEAD" && !slices.Contains(described[route], method) {
				t.Errorf("openapi.json does not describe %s %s", method, route)
			}
		}
	}
}
