// Package proxy carries a request to a worker and the worker's answer back to the client, byte for byte.
//
// The client's side uses net/http: its maintainers take care of TLS, HTTP/2, limits and defences against request
// smuggling. The worker's side is an HTTP/1.1 client of our own on pooled connections. A general client would cost most
// on this side. It would also hide facts that a router must know: when a stream is complete, when a request may be
// repeated, and how a dying engine ends an answer. docs/design/0004 explains the choice. To workers that speak HTTP/2,
// a stream takes the place of a connection (docs/design/0052). The package makes no routing decisions.
//
//	body, err := bodies.Read(w, r)              // pooled, bounded
//	result := client.Forward(ctx, &proxy.Attempt{Worker: url, Writer: w, Header: r.Header, Body: body.Bytes, …})
package proxy
