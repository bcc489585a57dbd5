// Command probe gives up privileges as its arguments say, and prints what each of its threads may
// still do: the threads were there before.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/privileges"
)

const threads = 6

// report holds what is printed. Tried has the sorted distinct answers of the threads.
type report struct {
	Error string
	Tried map[string][]string
	Tasks map[string][]string // lines of /proc/self/task/*/status
}

func main() {
	readable, writable := os.Args[1], os.Args[2]
	work := make([]chan func(), threads)
	for i := range work {
		work[i] = make(chan func())
		go func() {
			runtime.LockOSThread()
			for f := range work[i] {
				f()
			}
		}()
		var ready sync.WaitGroup // the thread is there
		ready.Add(1)
		work[i] <- ready.Done
		ready.Wait()
	}
	tasks, _ := filepath.Glob("/proc/self/task/*/status")
	var status []*os.File
	for _, task := range tasks { // opened now: Restrict may hide them
		if f, err := os.Open(task); err == nil {
			status = append(status, f)
		}
	}
	r := report{Tried: map[string][]string{}, Tasks: map[string][]string{}}
	for _, what := range os.Args[3:] {
		if err := give(what, readable, writable); err != nil {
			r.Error = fmt.Sprint(err)
		}
	}
	for name, f := range attempts(readable, writable) {
		for i := range work {
			answer := make(chan error)
			work[i] <- func() { answer <- f() }
			r.Tried[name] = add(r.Tried[name], fmt.Sprint(<-answer))
		}
	}
	for _, f := range status {
		text := make([]byte, 4096)
		n, _ := f.Read(text)
		for line := range strings.Lines(string(text[:n])) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
			r.Tasks[name] = add(r.Tasks[name], value)
		}
	}
	json.NewEncoder(os.Stdout).Encode(r)
}

func add(all []string, s string) []string {
	for _, have := range all {
		if have == s {
			return all
		}
	}
	return append(all, s)
}

func give(what, readable, writable string) error {
	switch what {
	case "all":
		return privileges.Drop()
	case "all but raw":
		return privileges.Drop(privileges.NetRaw)
	case "calls":
		return privileges.Filter()
	case "paths":
		return privileges.Restrict(privileges.Paths{Read: []string{readable, "/no/such/path"},
			Write: []string{writable}})
	}
	return fmt.Errorf("what is %q?", what)
}

func attempts(readable, writable string) map[string]func() error {
	socket := func(family, kind, protocol int) func() error {
		return func() error {
			fd, err := unix.Socket(family, kind, protocol)
			if err == nil {
				unix.Close(fd)
			}
			return err
		}
	}
	open := func(name string, flags int) func() error {
		return func() error {
			fd, err := unix.Open(name, flags|unix.O_CLOEXEC, 0o600)
			if err == nil {
				unix.Close(fd)
			}
			return err
		}
	}
	return map[string]func() error{
		"raw socket":     socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP),
		"packet socket":  socket(unix.AF_PACKET, unix.SOCK_RAW, 0),
		"TCP socket":     socket(unix.AF_INET, unix.SOCK_STREAM, 0),
		"strange socket": socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0),
		"host name":      func() error { return unix.Sethostname([]byte("probe")) },
		"execute": func() error {
			p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
			if err == nil {
				_, err = p.Wait()
			}
			return err
		},
		"code": func() error {
			mem, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC,
				unix.MAP_ANON|unix.MAP_PRIVATE)
			if err == nil {
				unix.Munmap(mem)
			}
			return err
		},
		"read":          open(filepath.Join(readable, "file"), unix.O_RDONLY),
		"list":          open(readable, unix.O_RDONLY|unix.O_DIRECTORY),
		"write":         open(filepath.Join(readable, "file"), unix.O_WRONLY),
		"make":          open(filepath.Join(writable, "new"), unix.O_WRONLY|unix.O_CREAT),
		"read passwd":   open("/etc/passwd", unix.O_RDONLY),
		"make in /tmp":  open(filepath.Join(os.TempDir(), "probe.tmp"), unix.O_RDWR|unix.O_CREAT),
		"make a thread": thread,
	}
}

// thread has the runtime make one more thread.
func thread() error {
	done := make(chan bool)
	go func() {
		runtime.LockOSThread() // ends with the goroutine
		close(done)
	}()
	<-done
	return nil
}
