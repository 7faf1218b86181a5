// Package snapshot gives a router's index to other routers and to files, and takes it from them: a warm start.
//
//	giver := snapshot.NewGiver(feed, name, version, log)  // an http.Handler of the admin listener
//	keeper := snapshot.NewKeeper(cfg, snapshot.Parts{…})  // takes, and saves to a file
//	err := keeper.Run(ctx)
//
// A snapshot has a checkpoint ([kvfeed.Checkpoint]) of each holder whose cache the giving router knows completely. The
// feed decides whether a checkpoint is believed: only if the engine confirms it. This package knows the format, the
// HTTP exchange and the file. It does not know what blocks mean.
//
// # Format
//
// A snapshot begins with the text "warmpath-index" and the number of the format, 16 bits. Then sections follow. A
// section has a kind (1 byte), the length of its content (32 bits), the content, and the xxh3 hash of all these bytes
// (64 bits). Numbers are little-endian. A holder is a section "holder" (JSON), sections "digests" and "runs" (binary),
// and a section "end of holder" with the number of its runs. Between holders there may be sections "alive" without
// content: the giving router is at work on the next holder. The last section ends the snapshot, and has the number of
// its holders. So a reader notices a snapshot that is cut short. A reader keeps at most one section of 2 MiB and one
// holder, whose size it bounds.
package snapshot
