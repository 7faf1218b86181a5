// Package ingest keeps the index true: it follows one ordered stream of KV events for each holder, applies it through
// the Router, and says how far each holder's entries can be believed, and why.
//
// It knows what a stream's gaps and an event's silences mean for what may be claimed. It refuses to know the wire
// (kvevent and kvevent/zmq do), where workers come from (discovery does) and how requests are routed.
//
//	m := ingest.New(router, ingest.Config{}, logger)
//	err := m.Run(ctx)
//
// Two rules decide everything here. Undercounting costs time, overcounting is a lie: an event that could belong to
// another request than it seems to is not applied. And trust is never better than the worst thing that happened since
// the holder's cache was last known to be empty.
package ingest
