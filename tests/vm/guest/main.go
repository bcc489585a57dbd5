//go:build linux

package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

func main() {
	if os.Getpid() != 1 {
		os.Exit(subcommand(os.Args[1:]))
	}
	if err := boot(); err != nil {
		fmt.Println("guest: boot:", err)
		powerOff()
	}
	if err := serve("/dev/ttyS1"); err != nil {
		fmt.Println("guest: serve:", err)
	}
	powerOff()
}

// subcommands are programs the host has the guest run, as /init NAME ...
var subcommands = map[string]func(args []string) error{
	"slice":    slice,
	"flood":    flood,
	"pace":     pace,
	"confine":  confine,
	"echo":     echoServer,
	"web":      webServer,
	"rules":    rules,
	"segments": segments,
	"signals":  signals,
}

// subcommand runs one and returns the exit code.
func subcommand(args []string) int {
	if len(args) == 0 || subcommands[args[0]] == nil {
		fmt.Fprintln(os.Stderr, "guest: no such subcommand:", args)
		return 2
	}
	if err := subcommands[args[0]](args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		return 1
	}
	return 0
}

// boot mounts the file systems and reaps orphaned processes, as init must.
func boot() error {
	for _, m := range []struct{ kind, at string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"},
		{"debugfs", "/sys/kernel/debug"}, {"devpts", "/dev/pts"}, {"tmpfs", "/dev/shm"},
	} {
		os.MkdirAll(m.at, 0o755)
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil && m.kind != "debugfs" {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	signal.Ignore(unix.SIGPIPE)
	os.Setenv("PATH", "/bin")
	os.Setenv("HOME", "/tmp")
	return nil
}

// powerOff ends the machine. It does not return.
func powerOff() {
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// agent answers requests; each runs in its own goroutine, so that a slow one does not hold up the
// others.
type agent struct {
	mu   sync.Mutex // guards jobs and writes to out
	jobs map[int]*job
	out  *os.File
}

// serve reads requests from the serial port until the host says "poweroff" or goes away.
func serve(tty string) error {
	f, err := os.OpenFile(tty, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := rawMode(f); err != nil {
		return err
	}
	a := &agent{jobs: map[int]*job{}, out: f}
	a.reply(rig.Reply{ID: rig.HelloID, Output: "ready"})
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		var q rig.Request
		if json.Unmarshal(s.Bytes(), &q) != nil {
			continue
		}
		if q.Op == "poweroff" {
			return nil
		}
		go func() { a.reply(a.handle(q)) }()
	}
	return s.Err()
}

// rawMode makes the terminal pass all bytes unchanged.
func rawMode(f *os.File) error {
	t, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		return err
	}
	t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
	t.Cflag = unix.CS8 | unix.CREAD | unix.CLOCAL | unix.B115200
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	return unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, t)
}

func (a *agent) reply(r rig.Reply) {
	line, err := json.Marshal(r)
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.out.Write(append(line, '\n'))
}

// handle does one request.
func (a *agent) handle(q rig.Request) rig.Reply {
	r := rig.Reply{ID: q.ID}
	var err error
	switch q.Op {
	case "ping":
	case "clock":
		r.Output = fmt.Sprint(time.Now().UnixNano())
	case "run":
		r.Code, r.Output, err = run(q)
	case "start":
		err = a.start(q)
	case "stop":
		r.Code, r.Output, err = a.stop(q)
	case "signal":
		err = a.signal(q)
	case "type":
		err = a.typeText(q)
	case "wait":
		r.Code, r.Output, err = a.wait(q)
	case "load":
		r.Output, err = loadModules(cmp.Or(q.Path, "order"))
	case "unload":
		err = unloadModules(q.Argv)
	case "read":
		var b []byte
		b, err = os.ReadFile(q.Path)
		r.Output = string(b)
	case "write":
		err = os.WriteFile(q.Path, []byte(q.Argv[0]), 0)
	case "glob":
		var m []string
		m, err = filepath.Glob(q.Path)
		r.Output = strings.Join(m, "\n")
	case "dmesg":
		r.Output, err = kernelLog()
	case "serve":
		err = serveHTTP(q.Argv[0])
	case "fetch":
		r.Output, err = fetch(q)
	case "upload":
		r.Output, err = upload(q)
	default:
		err = fmt.Errorf("unknown request %q", q.Op)
	}
	if err != nil {
		r.Code, r.Error = -1, err.Error()
	}
	return r
}
