// llama.cpp by node-llama-cpp: node llama_cpp.mjs FOLDER_OF_NODE_MODULES < {"model", "prompts", "tokens", "texts"}
// Prints {"greedy": ids after each prompt, "probabilities": of each id after each token of the first prompt,
//         "ids": of each text, "fromModel": what the file says of itself}.
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";
import {readFileSync} from "node:fs";
import path from "node:path";

const place = createRequire(path.join(process.argv[2], "any.js")).resolve("node-llama-cpp");
const {getLlama} = await import(pathToFileURL(place));
const asked = JSON.parse(readFileSync(0, "utf8"));
const llama = await getLlama({gpu: false, build: "never", logLevel: "error", maxThreads: 1});
const model = await llama.loadModel({modelPath: asked.model});
const context = await model.createContext({contextSize: asked.context, flashAttention: false});
const sequence = context.getSequence();

const greedy = [];
for (const prompt of asked.prompts) {
    await sequence.clearHistory();
    const ids = [];
    for await (const id of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
        ids.push(id);
        if (ids.length === asked.tokens)
            break;
    }
    greedy.push(ids);
}

await sequence.clearHistory();
const input = asked.prompts[0].map((id) => [id, {generateNext: {probabilities: true}}]);
const probabilities = (await sequence.controlledEvaluate(input)).map(({next}) => {
    const row = new Array(asked.vocabulary).fill(0);
    for (const [id, p] of next.probabilities)
        row[id] = p;
    return row;
});
const ids = asked.texts.map((text) => [...model.tokenize(text)]);
const found = {greedy, probabilities, ids, begins: model.tokens.shouldPrependBosToken};
process.stdout.write(JSON.stringify(found), () => process.exit(0));
