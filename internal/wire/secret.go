package wire

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// NewSecret makes the secret of a new job.
func NewSecret() []byte {
	secret := make([]byte, SecretBytes)
	if _, err := rand.Read(secret); err != nil {
		panic("wire: no random numbers: " + err.Error())
	}
	return secret
}

// ReadSecret reads the job's secret from an inherited descriptor: a pipe of this
// process's own, or a file that several processes share and that is therefore
// read by position.
func ReadSecret(f *os.File) ([]byte, error) {
	secret := make([]byte, SecretBytes)
	n, err := f.ReadAt(secret, 0)
	if errors.Is(err, syscall.ESPIPE) {
		n, err = io.ReadFull(f, secret)
	}
	if n == SecretBytes {
		return secret, nil
	}
	return nil, fmt.Errorf("the job's secret has %d bytes, must be %d: %w", n, SecretBytes, err)
}
