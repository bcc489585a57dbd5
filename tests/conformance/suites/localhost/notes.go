package localhost

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// NotesVariable names the environment variable of the directory that a process writes its Notes to.
const NotesVariable = "LOCALHOST_NOTES"

// Notes says what a process did with its slices, so that a suite in which nothing crossed a wire is
// seen.
type Notes struct {
	Sockets int            // on slices, but for accepted connections
	Kernel  int            // that the kernel made
	Tests   map[string]int // sockets that a test opened in its own goroutine or a child's frames
	Sent    uint64         // datagrams
	USO     uint64         // packets that the NIC cut up
	Frames  uint64         // that the switch carried
	Own     uint64         // datagrams that were received from the own slice
}

// ReadNotes adds up what processes have written into a directory.
func ReadNotes(directory string) (*Notes, error) {
	files, err := filepath.Glob(filepath.Join(directory, "*.json"))
	if err != nil {
		return nil, err
	}
	sum := &Notes{Tests: map[string]int{}}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var n Notes
		if err := json.Unmarshal(text, &n); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		sum.Sockets, sum.Kernel = sum.Sockets+n.Sockets, sum.Kernel+n.Kernel
		sum.Sent, sum.USO, sum.Frames, sum.Own = sum.Sent+n.Sent, sum.USO+n.USO,
			sum.Frames+n.Frames, sum.Own+n.Own
		for test, sockets := range n.Tests {
			sum.Tests[test] += sockets
		}
	}
	return sum, nil
}

// String says it in a line.
func (n *Notes) String() string {
	return fmt.Sprintf("%d tests opened %d sockets on slices, and %d of the kernel; %d packets of "+
		"UDP were sent, NICs cut up %d of them; %d frames of UDP and TCP crossed the wire, %d "+
		"datagrams did not", len(n.Tests), n.Sockets, n.Kernel, n.Sent, n.USO, n.Frames, n.Own)
}
