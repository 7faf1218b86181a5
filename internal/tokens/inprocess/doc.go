// Package inprocess makes a prompt's token ids in this process, from the model's own files: its tokenizer and its chat
// template. It uses files that the operator names, and files that it finds itself: those it first compares with
// engines' ids in probes (Finder). It knows which template a request takes, and how engines encode images. It does not
// know how text becomes ids (tokenizer), how an engine renders a chat (internal/tokens/chat), and whether its ids are
// believed while serving (the parent package compares them).
//
//	models, err := inprocess.Open([]inprocess.Path{{Path: "/models/qwen3"}})
//	finder := inprocess.NewFinder(inprocess.FinderParts{Fleet: fleet, Asker: source, Given: models, Log: log})
//	source.Local = finder
package inprocess
