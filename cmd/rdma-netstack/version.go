package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

func versionCommand(out streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "print the version of this build", Args: noWords,
		Long: "Prints the version, commit, Go release and gVisor release of this build.",
		RunE: func(*cobra.Command, []string) error { return printVersion(asJSON, out) }}
	addFlags(cmd, "Flags", opt("json", "", &asJSON, "print one JSON object"))
	return cmd
}

type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"` // the tree had changes on top of the commit
	Go       string `json:"go"`
	Platform string `json:"platform"`
	GVisor   string `json:"gvisor,omitempty"`

	date string // of the commit, such as 2026-11-22
}

func printVersion(asJSON bool, out streams) error {
	b := thisBuild()
	if asJSON {
		return json.NewEncoder(out.stdout).Encode(b)
	}
	commit := ""
	if b.Commit != "" {
		commit = ", commit " + b.Commit
	}
	if b.Modified {
		commit += " with changes"
	}
	_, err := fmt.Fprintf(out.stdout, "rdma-netstack %s%s, %s, %s, gVisor %s\n", b.Version, commit,
		b.Go, b.Platform, b.GVisor)
	return err
}

func thisBuild() build {
	b := build{
		Version:  "(devel)",
		Go:       runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value[:min(12, len(s.Value))]
		case "vcs.time":
			b.date, _, _ = strings.Cut(s.Value, "T")
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	for _, m := range info.Deps {
		if m.Path == "gvisor.dev/gvisor" {
			b.GVisor = m.Version
		}
	}
	return b
}
