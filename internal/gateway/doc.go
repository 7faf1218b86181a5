// Package gateway is the HTTP front. It reads a model request, lets the Router choose a worker, lets the proxy carry
// the request there and the answer back, and records the result. It serves POST /v1/chat/completions, POST
// /v1/completions, GET /v1/models, /health and /readiness.
//
// It does not know how a worker is chosen (the root package), how bytes are sent (internal/proxy), what a dialect looks
// like (internal/api) or how tokens are found (internal/tokens).
//
//	g := gateway.New(cfg, gateway.Parts{Router: router, Fleet: fleet, Tokens: source, Client: client, …})
//	err := g.Serve(ctx, listener) // serves until ctx ends, then drains
package gateway
