// Package sharedindex keeps the index of KV blocks in Valkey or Redis, so that many routers read what one or a few
// processes write. A [Writer] follows the changes of the indexes in its own process and mirrors them; a [Reader] looks
// prompts up:
//
//	err := reader.Match(ctx, &lookup) // lookup.Matches says how much of the prompt each holder has
//
// It knows how blocks and holders are laid out at the server (record.go, describe.go; docs/shared-index.md has the
// same for readers of other programs), and what to believe when the server or a writer fails. It refuses to know
// events, HTTP, and which worker is chosen.
//
// What a reader believes is never older than a writer's lease plus the time that changes wait in the writer. Wherever
// the writer can not be sure what is at the server, it gives a holder a new slot and writes the holder anew: the
// entries of the old slot count for nobody.
package sharedindex
