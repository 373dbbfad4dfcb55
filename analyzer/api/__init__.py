"""What `import wavecast` offers, and what the commands run: one function per question, each returns its report."""
