// Package proxy carries a request to a worker and the worker's answer back to the client, byte for byte.
//
// The client's side stays net/http: others maintain its TLS, HTTP/2, limits and defences against smuggling. The
// worker's side is an HTTP/1.1 client of our own on pooled connections. A general client costs most there, and hides
// what a router must know: when a stream is complete, when a request may be repeated, and how a dying engine ends an
// answer. See docs/design/0004 for the choice. The package decides nothing about routing.
//
//	body, err := bodies.Read(w, r)              // pooled, bounded
//	result := client.Forward(ctx, &proxy.Attempt{Worker: url, Writer: w, Header: r.Header, Body: body.Bytes, …})
package proxy
