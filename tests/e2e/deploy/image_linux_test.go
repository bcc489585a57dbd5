package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// images is a storage of images of the test's own.
type images struct {
	buildah string
	dir     string
}

func (i images) do(args ...string) (string, error) {
	out, err := exec.Command(i.buildah, i.args(args...)...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// args are those of a command on the storage.
func (i images) args(args ...string) []string {
	return append([]string{"--storage-driver", "vfs", "--root", filepath.Join(i.dir, "root"),
		"--runroot", filepath.Join(i.dir, "run")}, args...)
}

// must is do, and returns the last line.
func (i images) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := i.do(args...)
	if err != nil {
		t.Fatalf("buildah %q: %v: %s", args, err, out)
	}
	return out[strings.LastIndex(out, "\n")+1:]
}

// TestImage: both images have the program and nothing else, without a registry, and it serves; that
// of the ordinary user has the capability on the file, so it wants a container that has it.
func TestImage(t *testing.T) {
	need.Long(t, "builds the program and two images, 10 s")
	need.Root(t)
	h := newHosts(t)
	i := images{need.Tool(t, "buildah"), t.TempDir()}
	setcap := need.Tool(t, "setcap")
	bin := program(t)
	dir := filepath.Dir(bin)
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "bin", "rdma-netstack")
	if err := os.Rename(bin, file); err != nil {
		t.Fatal(err)
	}
	image := func(target string) (container string) {
		t.Helper()
		args := []string{"bud", "--isolation", "chroot", "-f", "../../../deploy/Dockerfile",
			"-t", "x"}
		if target != "" {
			args = append(args, "--target", target)
		}
		i.must(t, append(args, dir)...)
		container = i.must(t, "from", "x")
		root := i.must(t, "mount", container)
		files, err := os.ReadDir(root)
		if err != nil || len(files) != 1 || files[0].Name() != "rdma-netstack" {
			t.Errorf("the image has %v, %v", files, err)
		}
		i.must(t, "umount", container)
		return container
	}
	version := []string{"--", "/rdma-netstack", "version"}
	run := func(container string, flags ...string) (string, error) {
		return i.do(append(append(append([]string{"run", "--isolation", "chroot"}, flags...),
			container), version...)...)
	}
	privileged := image("")
	if out, err := run(privileged); err != nil || !strings.HasPrefix(out, "rdma-netstack ") {
		t.Errorf("%v: %s", err, out)
	}
	h.serveIn(t, i, privileged)
	if out, err := exec.Command(setcap, "cap_net_raw+ep", file).CombinedOutput(); err != nil {
		need.That(t, "filecaps", err)
		t.Log(string(out))
	}
	nonroot := image("nonroot")
	out, err := run(nonroot, "--cap-add", "CAP_NET_RAW")
	if err != nil || !strings.HasPrefix(out, "rdma-netstack ") {
		t.Errorf("%v: %s", err, out)
	}
	h.serveIn(t, i, nonroot)
	if out, err := run(nonroot); err == nil || !strings.Contains(out, "not permitted") {
		t.Errorf("without NET_RAW: %v: %s", err, out)
	}
	if user := i.must(t, "inspect", "--format", "{{.OCIv1.Config.User}}", nonroot); user !=
		"65532:65532" {
		t.Errorf("it runs as %s", user)
	}
}

// serveIn has the program in a container serve on the host's interface, and end in order.
func (h hosts) serveIn(t *testing.T, i images, container string) {
	t.Helper()
	s := h.start(t, exec.Command(i.buildah, i.args("run", "--isolation", "chroot",
		"--cap-add", "CAP_NET_RAW", container, "--", "/rdma-netstack", "serve", "http",
		"--device", "veth0", "--address", "192.0.2.10/24", "--json-logs")...))
	if got := h.get(t, "http://192.0.2.10/"); !strings.HasPrefix(got, "ok") {
		t.Errorf("got %q", got)
	}
	if err := unix.Kill(h.program(t), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if <-s.ended; s.err != nil {
		t.Errorf("the server: %v: %s", s.err, &s.stderr)
	}
}

// program is the process of a container on the host of servers: buildah does not pass signals on.
func (h hosts) program(t *testing.T) (pid int) {
	t.Helper()
	ours, err := os.Readlink(h.server.Path())
	if err != nil {
		t.Fatal(err)
	}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range all {
		name, _ := os.ReadFile(filepath.Join(dir, "comm")) // an error: it has ended
		if in, _ := os.Readlink(filepath.Join(dir, "ns/net")); in == ours &&
			string(name) == "rdma-netstack\n" {
			pid, err = strconv.Atoi(filepath.Base(dir))
		}
	}
	if pid == 0 || err != nil {
		t.Fatalf("no server in a container: %v", err)
	}
	return pid
}
