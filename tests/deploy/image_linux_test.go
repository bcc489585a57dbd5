package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/need"
)

// images is a storage of images of the test's own.
type images struct {
	buildah string
	dir     string
}

func (i images) do(args ...string) (string, error) {
	all := append([]string{"--storage-driver", "vfs", "--root", filepath.Join(i.dir, "root"),
		"--runroot", filepath.Join(i.dir, "run")}, args...)
	out, err := exec.Command(i.buildah, all...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
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

// TestImage: both images have the program and nothing else, without a registry, and it runs; that
// of the ordinary user has the capability on the file, so it wants a container that has it.
func TestImage(t *testing.T) {
	need.Long(t, "builds the program and two images, 5 s")
	need.Root(t)
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
		args := []string{"bud", "--isolation", "chroot", "-f", "../../deploy/Dockerfile", "-t", "x"}
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
	if out, err := run(image("")); err != nil || !strings.HasPrefix(out, "rdma-netstack ") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := exec.Command(setcap, "cap_net_raw+ep", file).CombinedOutput(); err != nil {
		need.That(t, "filecaps", err)
		t.Log(string(out))
	}
	nonroot := image("nonroot")
	out, err := run(nonroot, "--cap-add", "CAP_NET_RAW")
	if err != nil || !strings.HasPrefix(out, "rdma-netstack ") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := run(nonroot); err == nil || !strings.Contains(out, "not permitted") {
		t.Errorf("without NET_RAW: %v: %s", err, out)
	}
	if user := i.must(t, "inspect", "--format", "{{.OCIv1.Config.User}}", nonroot); user !=
		"65532:65532" {
		t.Errorf("it runs as %s", user)
	}
}
