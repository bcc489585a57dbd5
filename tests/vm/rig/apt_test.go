package rig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Source packages come from the mirror of their suite.
func TestSourcesList(t *testing.T) {
	list := string(sourcesList(archive{main: "http://m", security: "http://s"},
		[]string{"bookworm", "bookworm-security", sourcesOf + "trixie"}))
	list = strings.ReplaceAll(list, "[signed-by="+keyring+"] ", "")
	want := "deb http://m bookworm main\ndeb http://s bookworm-security main\n" +
		"deb-src http://m trixie main\n"
	if list != want {
		t.Errorf("%q, want %q", list, want)
	}
}

// A libpcap that was configured without libibverbs is not kept.
func TestLibpcapWithoutVerbs(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), LibpcapName)
	if err := keepLibpcap(self, to); err == nil || !strings.Contains(err.Error(), "libibverbs") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(to); err == nil {
		t.Error("it was kept")
	}
}
