// Command ssh runs "cat" for who comes, by github.com/gliderlabs/ssh.
package main

import (
	"io"
	"log"

	"github.com/gliderlabs/ssh"
)

func main() {
	log.Fatal(ssh.ListenAndServe(":2222", func(s ssh.Session) { io.Copy(s, s) }))
}
