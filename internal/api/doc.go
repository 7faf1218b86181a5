// Package api knows the dialects of clients and engines. It reads requests as far as routing needs them, writes errors,
// and follows the state of a response while the response is forwarded.
//
// The package never changes a body in place: AppendEdited and Piece write changed copies. It does no I/O, except that
// WriteError writes an answer. A dialect is one file (chat.go, completions.go) and one line in the table of dialect.go;
// openai.go has what several dialects have in common.
//
// The calls most readers want:
//
//	err := api.Read(api.OpenAIChat, body, &req) // strict; err is an *api.Error, ready for api.WriteError
//	watcher.Reset(api.OpenAIChat, api.EventStream)
//	watcher.Feed(chunk)                         // for each piece of the response, split anywhere
package api
