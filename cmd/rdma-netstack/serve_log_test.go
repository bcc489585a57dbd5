package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/internal/logs"
)

// TestLogFlags: format and least level, as the flags say.
func TestLogFlags(t *testing.T) {
	for _, tc := range []struct {
		args, want string // of what is written
	}{
		{"", "level=WARN msg=warns level=ERROR msg=fails"},
		{"--log-level error", "level=ERROR msg=fails"},
		{"--log-level info", "level=INFO msg=says level=WARN msg=warns level=ERROR msg=fails"},
		{"--log-format text", "level=WARN msg=warns level=ERROR msg=fails"},
		{"--log-format json --log-level warn",
			`"level":"WARN","msg":"warns"} "level":"ERROR","msg":"fails"}`},
		{"--json-logs", `"level":"INFO","msg":"says"} "level":"WARN","msg":"warns"} ` +
			`"level":"ERROR","msg":"fails"}`},
	} {
		cmd, f := &cobra.Command{}, logFlags{}
		f.addTo(cmd)
		if err := cmd.ParseFlags(strings.Fields(tc.args)); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		log := f.logger(&out)
		log.Debug("debugs")
		log.Info("says")
		log.Warn("warns")
		log.Error("fails")
		var got []string
		for line := range strings.Lines(out.String()) {
			at := max(strings.Index(line, "level="), strings.Index(line, `"level":`))
			got = append(got, strings.TrimSpace(line[at:]))
		}
		if s := strings.Join(got, " "); s != tc.want {
			t.Errorf("%q: %s\nwant %s", tc.args, s, tc.want)
		}
		out.Reset()
		for range 100 {
			log.Error("again")
		}
		if n := strings.Count(out.String(), "again"); n != logs.Burst {
			t.Errorf("%q: %d lines of 100", tc.args, n)
		}
	}
	for args, want := range map[string]string{"--log-level loud": "want debug, info, warn or error",
		"--log-format xml": "want text or json"} {
		cmd, f := &cobra.Command{}, logFlags{}
		f.addTo(cmd)
		if err := cmd.ParseFlags(strings.Fields(args)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}
