package main

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestTheVersionNamesItsCommit(t *testing.T) {
	platform := ", " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
	for _, c := range []struct {
		version, revision, at, modified string
		want, release                   string
	}{
		{"v0.3.0", "0123456789abcdef", "2026-11-29T00:32:00Z", "false", "v0.3.0, commit 0123456789ab of 2026-11-29T00:32:00Z", "v0.3.0"},
		{"v0.3.1-0.20261129003200-0123456789ab+dirty", "0123456789abcdef", "2026-11-29T00:32:00Z", "true",
			"v0.3.1-0.20261129003200-0123456789ab+dirty, commit 0123456789ab of 2026-11-29T00:32:00Z with changes", "v0.3.1-0.20261129003200-0123456789ab+dirty"},
		{"(devel)", "0123456789abcdef", "", "", "devel-0123456789ab, commit 0123456789ab", "devel-0123456789ab"},
		{"v0.3.0", "", "", "", "v0.3.0", "v0.3.0"}, // go install …@v0.3.0
		{"", "", "", "", "devel", "devel"},
	} {
		info := &debug.BuildInfo{Main: debug.Module{Version: c.version}}
		for _, s := range []debug.BuildSetting{{Key: "vcs.revision", Value: c.revision}, {Key: "vcs.time", Value: c.at}, {Key: "vcs.modified", Value: c.modified}} {
			if s.Value != "" {
				info.Settings = append(info.Settings, s)
			}
		}
		if got := versionOf(info); got != c.want+platform {
			t.Errorf("%+v: %s", c, got)
		}
		if got := releaseOf(info); got != c.release {
			t.Errorf("%+v: release %s", c, got)
		}
	}
}
