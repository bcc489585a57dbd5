//go:build linux

package localhost

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"sync"
)

// notes keeps Notes, and writes them to a file whenever they change.
type notes struct {
	mu   sync.Mutex
	file string // "": nobody asks for them
	said Notes  // guarded by mu
}

// writeTo makes the notes go into a directory, to a file of this process.
func (n *notes) writeTo(directory string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.file = filepath.Join(directory, strconv.Itoa(os.Getpid())+".json")
	n.said.Tests = map[string]int{}
}

// add changes the notes.
func (n *notes) add(h *Host, change func(*Notes)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.file == "" {
		return
	}
	change(&n.said)
	n.said.Frames, n.said.Own = h.fabric.carried.Load(), h.own.Load()
	n.said.Sent, n.said.USO = 0, 0
	for _, s := range h.slices {
		n.said.Sent += s.stack.Stats().UDPSent
		n.said.USO += s.stack.LinkStats().TxUSO
	}
	text, err := json.Marshal(n.said)
	if err == nil { // in whole: the process may end meanwhile
		err = os.WriteFile(n.file+".new", text, 0o644)
	}
	if err == nil {
		_ = os.Rename(n.file+".new", n.file) // what is missing is seen by who reads it
	}
}

func (n *notes) addSocket(h *Host) {
	test := runningTest()
	n.add(h, func(to *Notes) {
		to.Sockets++
		if test != "" {
			to.Tests[test]++
		}
	})
}

var testFunction = regexp.MustCompile(`\.(Test[A-Z]\w*)`)

// runningTest returns the name of the test that this goroutine is in, or "".
func runningTest() string {
	var callers [64]uintptr
	frames := runtime.CallersFrames(callers[:runtime.Callers(1, callers[:])])
	for {
		f, more := frames.Next()
		if m := testFunction.FindStringSubmatch(f.Function); m != nil && m[1] != "TestMain" {
			return m[1]
		}
		if !more {
			return ""
		}
	}
}
