// Command etcd runs go.etcd.io/etcd/server, which a module of its own cannot be built from alone.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
