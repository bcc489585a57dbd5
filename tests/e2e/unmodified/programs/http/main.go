// Command http serves bytes and hashes by net/http alone.
package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"net/http"
	"strconv"
	"strings"
)

const text = "0123456789abcdefghijklmnopqrstuvwxyz"

func main() {
	http.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.FormValue("n"))
		io.WriteString(w, strings.Repeat(text, n/len(text)+1)[:n])
	})
	http.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		io.Copy(h, r.Body)
		fmt.Fprintf(w, "%x", h.Sum(nil))
	})
	log.Fatal(http.ListenAndServe(":80", nil))
}
