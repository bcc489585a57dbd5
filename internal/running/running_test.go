package running

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestFound: a server is found by its socket, answers, and is gone after Close.
func TestFound(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	dirs := []string{filepath.Join(t.TempDir(), "no", "\x00"), dir}
	if all, err := Find(t.Context(), dirs); len(all) != 0 || err != nil {
		t.Fatalf("found %v, %v before there is one", all, err)
	}
	l, err := Listen(dirs)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/info" {
			http.Error(w, "no such thing", http.StatusNotFound)
			return
		}
		json.NewEncoder(w).Encode(7)
	})}
	go srv.Serve(l)
	for path, mode := range map[string]os.FileMode{dir: 0o700, l.Addr().String(): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s has mode %v, %v; want %v", path, info.Mode().Perm(), err, mode)
		}
	}
	all, err := Find(t.Context(), append(dirs, dir))
	if err != nil || len(all) != 1 || all[0].PID != os.Getpid() {
		t.Fatalf("found %v, %v", all, err)
	}
	n := 0
	if err := all[0].Get(t.Context(), "/info", &n); err != nil || n != 7 {
		t.Errorf("%d, %v", n, err)
	}
	if err := all[0].Get(t.Context(), "/x", &n); err == nil ||
		!strings.Contains(err.Error(), "404 Not Found: no such thing") {
		t.Errorf("of a path that is not there: %v", err)
	}
	srv.Close()
	if all, err := Find(t.Context(), dirs); len(all) != 0 || err != nil {
		t.Errorf("found %v, %v after Close", all, err)
	}
}

// TestTwoStacks: a process with two stacks has two sockets.
func TestTwoStacks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	for range 2 {
		l, err := Listen([]string{dir})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	all, err := Find(t.Context(), []string{dir})
	if err != nil || len(all) != 2 || all[0].PID != all[1].PID {
		t.Errorf("found %v, %v", all, err)
	}
}

// TestStaleSocket: a socket that a killed process left is passed over, and replaced by a new
// process of the same id.
func TestStaleSocket(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	left, err := listenIn(dir, "unix", suffix)
	if err != nil {
		t.Fatal(err)
	}
	left.(*net.UnixListener).SetUnlinkOnClose(false)
	left.Close()
	if all, err := Find(t.Context(), []string{dir}); len(all) != 0 || err != nil {
		t.Errorf("found %v, %v", all, err)
	}
	l, err := Listen([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// TestLeftSockets: what a killed process has left is removed by the next server and by whoever
// looks; what a process that lives has not listened to yet is not.
func TestLeftSockets(t *testing.T) {
	ended := exec.Command("/proc/self/exe", "-test.run=^$")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	for name, look := range map[string]func([]string){
		"Find":     func(in []string) { Find(t.Context(), in) },
		"Handover": func(in []string) { Handover(in) },
		"Listen": func(in []string) {
			l, err := Listen(in)
			h, errH := ListenHandover(in)
			if err := errors.Join(err, errH); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close(); h.Close() })
		},
	} {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		gone, lives := fmt.Sprint(ended.Process.Pid), fmt.Sprint(os.Getppid())
		for suffix, network := range map[string]string{suffix: "unix",
			handoverSuffix: "unixpacket"} {
			for _, pid := range []string{gone, gone + "-2", lives} {
				l, err := net.ListenUnix(network, &net.UnixAddr{Net: network,
					Name: filepath.Join(dir, pid+suffix)})
				if err != nil {
					t.Fatal(err)
				}
				l.SetUnlinkOnClose(false)
				l.Close()
			}
		}
		look([]string{dir})
		for suffix, by := range map[string]string{".sock": "Find", ".handover": "Handover"} {
			kept := name != by && name != "Listen"
			for pid, want := range map[string]bool{lives: true, gone: kept, gone + "-2": kept} {
				_, err := os.Stat(filepath.Join(dir, pid+suffix))
				if (err == nil) != want {
					t.Errorf("%s: %s%s is there: %v, want %v", name, pid, suffix, !want, want)
				}
			}
		}
	}
}

// TestHandover: the sockets of servers that another may take over from are found by process id, but
// for our own; those that a killed process left are not.
func TestHandover(t *testing.T) {
	dir := t.TempDir()
	l, err := ListenHandover([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if all := Handover([]string{dir}); len(all) != 0 {
		t.Errorf("found %v, want our own left out", all)
	}
	other, stale := filepath.Join(dir, "1.handover"), filepath.Join(dir, "2.handover")
	if err := os.Link(l.Addr().String(), other); err != nil {
		t.Fatal(err)
	}
	gone, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: stale})
	if err != nil {
		t.Fatal(err)
	}
	gone.SetUnlinkOnClose(false)
	gone.Close()
	if all := Handover([]string{dir}); len(all) != 1 || all[1] != other {
		t.Errorf("found %v, want that of process 1", all)
	}
}

// TestDirectoryOfOthers: a directory that others can write to is refused.
func TestDirectoryOfOthers(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if l, err := Listen([]string{dir}); err == nil {
		l.Close()
		t.Error("accepted")
	}
}

func TestDirectories(t *testing.T) {
	for _, c := range []struct{ name, runtime, user, want string }{
		{"neither", "", "", "/run/rdma-netstack"},
		{"of the user", "", "/run/user/7", "/run/rdma-netstack /run/user/7/rdma-netstack"},
		{"of the service", "/run/x", "/run/user/7", "/run/x"},
		{"two of the service", "/run/x:/run/y", "/run/user/7", "/run/x /run/y"},
	} {
		env := map[string]string{"RUNTIME_DIRECTORY": c.runtime, "XDG_RUNTIME_DIR": c.user}
		got := Directories(func(name string) string { return env[name] })
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}
