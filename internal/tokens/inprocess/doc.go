// Package inprocess makes a prompt's token ids in this process, from the model's own files: its tokenizer and its chat
// template. It knows where those files lie, or finds them and has engines prove them (Finder), which template a request
// takes, and what an engine does around both; it refuses to know how text becomes ids (tokenizer), what an
// engine makes of a chat (internal/tokens/chat) and whether its ids are believed while serving (the parent package compares them).
//
//	models, err := inprocess.Open([]inprocess.Path{{Path: "/models/qwen3"}})
//	finder := inprocess.NewFinder(inprocess.FinderParts{Fleet: fleet, Asker: source, Given: models, Log: log})
//	source.Local = finder
package inprocess
