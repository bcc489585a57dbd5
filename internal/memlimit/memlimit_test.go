package memlimit

import (
	"math"
	"testing"
	"testing/fstest"
)

func TestAvailable(t *testing.T) {
	if n := Available(); n < 64<<20 {
		t.Errorf("%d bytes", n)
	}
}

// TestCgroupLimit: the least limit of all cgroups above the process counts, of either version.
func TestCgroupLimit(t *testing.T) {
	for name, c := range map[string]struct {
		own   string
		files map[string]string
		want  int64
	}{
		"none":      {want: math.MaxInt64},
		"container": {own: "0::/\n", files: map[string]string{"memory.max": "1000\n"}, want: 1000},
		"own": {own: "0::/a/b\n", files: map[string]string{"a/memory.max": "max\n",
			"a/b/memory.max": "2000\n"}, want: 2000},
		"parent": {own: "0::/a/b\n", files: map[string]string{"a/memory.max": "500\n",
			"a/b/memory.max": "2000\n"}, want: 500},
		"outside": {own: "0::/../../x\n", files: map[string]string{"memory.max": "700\n"},
			want: 700},
		"version 1": {own: "5:cpu:/c\n4:memory:/a/b\n", files: map[string]string{
			"memory/a/memory.limit_in_bytes":   "300\n",
			"memory/a/b/memory.limit_in_bytes": "9223372036854771712\n"}, want: 300},
		"garbage": {own: "?\n1:2\n0::/a\n", files: map[string]string{"a/memory.max": "-3"},
			want: math.MaxInt64},
	} {
		root := fstest.MapFS{}
		if c.own != "" {
			root["proc/self/cgroup"] = &fstest.MapFile{Data: []byte(c.own)}
		}
		for file, text := range c.files {
			root["sys/fs/cgroup/"+file] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := cgroupLimit(root); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func FuzzCgroup(f *testing.F) {
	f.Add("0::/a/b\n4:memory:/c\n", "1000")
	f.Fuzz(func(t *testing.T, own, limit string) {
		root := fstest.MapFS{"proc/self/cgroup": {Data: []byte(own)},
			"sys/fs/cgroup/memory.max": {Data: []byte(limit)}}
		if n := cgroupLimit(root); n <= 0 {
			t.Errorf("%d", n)
		}
	})
}
