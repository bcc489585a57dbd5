package world

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
)

// recorded returns the wire with a capture: what passes on this side of the faults is written to a
// pcap file in the directory WIRE_CAPTURE, if that is set. The file is removed when the test
// passes.
func recorded(t testing.TB, side string, w wire.Wire) wire.Wire {
	t.Helper()
	dir := os.Getenv("WIRE_CAPTURE")
	if dir == "" {
		return w
	}
	name := strings.NewReplacer("/", "-", " ", "_").Replace(t.Name())
	file, err := os.CreateTemp(dir, name+"-*-"+side+".pcap")
	must(t, err)
	t.Cleanup(func() {
		file.Close()
		if !t.Failed() {
			os.Remove(file.Name())
			return
		}
		t.Logf("the frames at the %s's end: %s", side, filepath.Clean(file.Name()))
	})
	captured, err := wire.Capture(w, file, clock.Clock{})
	must(t, err)
	return captured
}
