package httpd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// strangeRoot is a directory with all kinds of entries that a web server must not serve.
func strangeRoot(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	for name, text := range map[string]string{
		"secret": "no", "root/a": "a", "root/.env": "no", "root/.git/config": "no",
		"root/.well-known/acme": "yes",
		"root/.well-known/.env": "no", "root/plain/b": "b", "root/.well-known2/x": "no",
		"root/sub/index.html": "index",
	} {
		p := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755),
			os.WriteFile(p, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	in := func(name string) string { return filepath.Join(root, name) }
	if err := errors.Join(
		syscall.Mkfifo(in("fifo"), 0o644), os.Symlink("fifo", in("tofifo")),
		os.Symlink("../secret", in("out")),
		os.Symlink("/dev/zero", in("zero")), os.Symlink("a", in("toa")),
		os.Symlink("loop", in("loop")),
		os.Symlink(".env", in("env")), os.Mkdir(in("pipes"), 0o755),
		syscall.Mkfifo(in("pipes/index.html"), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	return root
}

func TestStrangeFiles(t *testing.T) {
	root := strangeRoot(t)
	for _, tt := range []struct {
		name, path string
		cfg        Config
		status     int
		body       string // a part
	}{
		{"file", "/a", Config{}, 200, "a"},
		{"link inside", "/toa", Config{}, 200, "a"},
		{"link out", "/out", Config{}, 404, ""},
		{"link to itself", "/loop", Config{}, 404, ""},
		{"NUL", "/a%00b", Config{}, 404, ""},
		{"a name too long", "/" + strings.Repeat("a", 300), Config{}, 404, ""},
		{"below a file", "/a/b", Config{}, 404, ""},
		{"FIFO", "/fifo", Config{}, 404, ""},
		{"link to a FIFO", "/tofifo", Config{}, 404, ""},
		{"a FIFO as index", "/pipes/", Config{}, 404, ""},
		{"a FIFO as index, with listings", "/pipes/",
			Config{DebugEndpoints: true}, 200, "index.html"},
		{"link to a device", "/zero", Config{}, 404, ""},
		{"dot file", "/.env", Config{}, 404, ""},
		{"below a dot directory", "/.git/config", Config{}, 404, ""},
		{"dot file, asked for", "/.env", Config{DotFiles: true}, 200, "no"},
		{"well-known", "/.well-known/acme", Config{}, 200, "yes"},
		{"dot file in well-known", "/.well-known/.env", Config{}, 404, ""},
		{"not well-known", "/.well-known2/x", Config{}, 404, ""},
		{"index", "/sub/", Config{}, 200, "index"},
		{"listing", "/plain/", Config{}, 404, ""},
		{"listing, asked for", "/plain/", Config{DebugEndpoints: true}, 200, `"b"`},
		{"listing of the root", "/", Config{}, 404, ""},
		{"status", "/-/status", Config{}, 404, ""},
		{"status as JSON", "/-/status.json", Config{}, 404, ""},
		{"bytes", "/-/bytes/1", Config{}, 404, ""},
		{"echo", "/-/echo", Config{}, 404, ""},
		{"health", "/-/healthz", Config{}, 200, "ok\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.cfg.Root = root
			_, url, c := serve(t, tt.cfg)
			c.Timeout = 10 * time.Second
			resp, body := get(t, c, "GET", url+tt.path)
			if resp.StatusCode != tt.status || !strings.Contains(string(body), tt.body) {
				t.Errorf("status %d, want %d; body %.100q", resp.StatusCode, tt.status, body)
			}
		})
	}
	t.Run("listing without dot files", func(t *testing.T) {
		_, url, c := serve(t, Config{Root: root, DebugEndpoints: true})
		if _, body := get(t, c, "GET", url+"/"); strings.Contains(string(body), ".env") ||
			!strings.Contains(string(body), `"a"`) {
			t.Errorf("%s", body)
		}
	})
}

// TestHealth: the page lists the checks, and fails when one of them does.
func TestHealth(t *testing.T) {
	bad := errors.New("the port is down")
	var failing error
	root := filepath.Join(t.TempDir(), "www")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	_, url, c := serve(t, Config{Root: root, MaxConns: 5,
		Checks: []Check{{"device", func() error { return failing }}}})
	for _, tt := range []struct {
		name   string
		err    error
		status int
		body   string
	}{
		{"well", nil, 200, "ok\nconnections: 1 of 5\nroot directory: ok\ndevice: ok\n"},
		{"device", bad, 503,
			"failing\nconnections: 1 of 5\nroot directory: ok\ndevice: the port is down\n"},
	} {
		failing = tt.err
		if resp, body := get(t, c, "GET", url+"/-/healthz"); resp.StatusCode != tt.status ||
			string(body) != tt.body {
			t.Errorf("%s: %d %q", tt.name, resp.StatusCode, body)
		}
	}
}
