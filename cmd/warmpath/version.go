package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version and how it was built",
		Long: `Print the version, the commit with its time, the Go version and the platform. Give this line when
you report a fault.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(c.OutOrStdout(), "warmpath %s\n", version())
			return err
		},
	}
}

// version returns the module's version, the commit and its time if it was built from a checkout, the Go version and the
// platform.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo)
	}
	return versionOf(info)
}

// versionOf is version for the given facts of a build. The go command records them: the version from the tag of the
// commit, or a pseudo-version. So a build needs no flags of the linker for them.
func versionOf(info *debug.BuildInfo) string {
	text := releaseOf(info)
	if revision := setting(info, "vcs.revision"); revision != "" {
		text += ", commit " + revision[:min(12, len(revision))]
		if at := setting(info, "vcs.time"); at != "" {
			text += " of " + at
		}
		if setting(info, "vcs.modified") == "true" {
			text += " with changes"
		}
	}
	return fmt.Sprintf("%s, %s %s/%s", text, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// release returns the module's version alone.
func release() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return releaseOf(info)
}

func releaseOf(info *debug.BuildInfo) string {
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	if revision := setting(info, "vcs.revision"); len(revision) >= 12 {
		return "devel-" + revision[:12]
	}
	return "devel"
}

// setting returns a setting of a build, or "".
func setting(info *debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
