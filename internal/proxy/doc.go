// Package proxy carries a request to a worker and the worker's answer back to the client, byte for byte.
//
// The client's side stays net/http (TLS, HTTP/2, limits and smuggling defences that others maintain); the worker's side
// is an HTTP/1.1 client of our own on raw connections, because it is there that a general client costs most and knows
// least: when a stream is complete, when a try may be repeated, what a dying engine looks like
// (../shared/facts/proxy_prototype.md, stream_survival.md). The package decides nothing about routing.
//
//	body, err := bodies.Read(w, r)              // pooled, bounded
//	result := client.Forward(ctx, &proxy.Attempt{Worker: url, Writer: w, Header: r.Header, Body: body.Bytes, …})
package proxy
