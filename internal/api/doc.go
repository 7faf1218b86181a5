// Package api knows the dialects that clients and engines speak: how a request is read for routing, what an error looks
// like, and what a response says about itself while it passes.
//
// It never changes a body and never talks to anyone: it reads bytes that others hold. A dialect is one file (chat.go,
// completions.go) and one line in the table of dialect.go.
//
// The calls most readers want:
//
//	err := api.Read(api.OpenAIChat, body, &req) // strict; err is an *api.Error, ready for api.WriteError
//	watcher.Reset(api.OpenAIChat, api.EventStream)
//	watcher.Feed(chunk)                         // once per piece that passes, split anywhere
package api
