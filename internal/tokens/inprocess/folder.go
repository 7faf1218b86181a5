package inprocess

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Path is the location of a model's files.
type Path struct {
	// Name is the base model's name in the workers' /v1/models. Empty means the fleet's only base model, whatever its name
	// is. While the fleet has several base models, a folder without a name is treated as a found folder: the router uses
	// the folder for a model after that model's engine gave equal ids in every probe.
	Name string `yaml:"name"`
	// Path is one of three things. First, a folder with tokenizer.json, tekken.json or a .tiktoken file, which also has
	// the chat template. Second, a folder of a Hugging Face cache (models--ORG--NAME). The router uses the snapshot of the
	// revision main in this folder, or the newest snapshot if main is missing. Third, hub:ORG/NAME[@REVISION]. Such a
	// model is downloaded if hub.allow is true.
	Path string `yaml:"path"`
}

// ParsePath reads [NAME=]PATH, the form of the command line.
func ParsePath(s string) (Path, error) {
	name, path, named := strings.Cut(s, "=")
	if !named {
		name, path = "", s
	}
	if path == "" {
		return Path{}, fmt.Errorf("model path %q names no folder: write PATH or NAME=PATH", s)
	}
	return Path{Name: name, Path: path}, nil
}

// folder returns the folder that contains the model's files. In a Hugging Face cache it is snapshots/COMMIT below path.
func folder(path string) (string, error) {
	if path == "" {
		return "", errors.New("open model folder: no folder is named")
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) && hubNamed(path) {
		return "", fmt.Errorf("open model folder: %w; if %s is a model's name, write its folder (in the Hugging Face cache "+
			"models--%s), or %s%s with --allow-hub", err, path, strings.ReplaceAll(path, "/", "--"), hubPrefix, path)
	}
	if err != nil {
		return "", fmt.Errorf("open model folder: %w", err)
	}
	if !info.IsDir() {
		return "", fmt.Errorf("open model folder: %s is a file: name the folder that holds it", path)
	}
	snapshots := filepath.Join(path, "snapshots")
	if main, err := os.ReadFile(filepath.Join(path, "refs", "main")); err == nil {
		return filepath.Join(snapshots, strings.TrimSpace(string(main))), nil
	}
	revisions, err := os.ReadDir(snapshots)
	if errors.Is(err, fs.ErrNotExist) {
		return path, nil
	}
	if err != nil {
		return "", fmt.Errorf("open model folder: %w", err)
	}
	newest := slices.MaxFunc(append(revisions, nil),
		func(a, b fs.DirEntry) int { return modified(a).Compare(modified(b)) })
	if newest == nil {
		return "", fmt.Errorf("open model folder: %s holds no snapshot: was the download broken off?", snapshots)
	}
	return filepath.Join(snapshots, newest.Name()), nil
}
